"""Origins, links, tokens and cookies, each by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from starlette.requests import Request

from pgsluice.console.server.access.entrance import CSRF_COOKIE, FIRST_TOKEN, SESSION_COOKIE, Entrance
from pgsluice.console.server.access.origin import OwnOrigin
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.access.sessions import LINK_S, Links
from pgsluice.console.server.access.tokens import Tokens
from pgsluice.console.server.problem import Problem
from pgsluice.shared.errors import UsageError

HOST = "pgsluice.example.com:8470"


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_page_of_the_same_host_by_another_scheme_is_a_page_of_another_origin(is_secure: bool) -> None:
    ours = OwnOrigin(frozenset({"pgsluice.example.com"}), 8470, is_secure)
    own, other = (f"https://{HOST}", f"http://{HOST}")[:: 1 if is_secure else -1]
    ours.check(HOST, own, "")
    with pytest.raises(Problem, match="another origin"):
        ours.check(HOST, other, "")


def test_a_link_is_good_until_its_time_is_over_whoever_makes_another_one(tmp_path: Path) -> None:
    links = Links(tmp_path)
    first, second = links.make("one"), links.make("two")
    assert [links.take(code) for code in (first, second, first)] == ["one", "two", None]
    links.make("never taken")
    [file] = tmp_path.iterdir()
    before = time.time() - LINK_S - 1
    os.utime(file, (before, before))
    links.make("new")
    assert len(list(tmp_path.iterdir())) == 1
    assert not file.exists()


def test_a_name_is_one_token_s(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    first = tokens.create("taken", Role.VIEWER, values=False)
    with pytest.raises(UsageError, match="there is a token named 'taken' already"):
        tokens.create("taken", Role.ADMIN, values=True)
    [known] = tokens.known()
    assert known.role is Role.VIEWER
    assert tokens.principal(first) is not None


@pytest.mark.parametrize("name", ["", "A", "a b", "a\n", "-a", "a" * 65])
def test_what_is_no_name_names_no_token(tmp_path: Path, name: str) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    with pytest.raises(UsageError, match="is no name for a token"):
        tokens.create(name, Role.VIEWER, values=False)
    assert tokens.known() == ()


@pytest.mark.parametrize("is_secure", [True, False])
def test_cookies_of_a_server_that_is_reached_by_https_are_sent_by_nothing_else(tmp_path: Path, is_secure: bool) -> None:
    entrance = Entrance.of(tmp_path, is_secure=is_secure)
    entrance.make_first_token()
    token = entrance.tokens.named(FIRST_TOKEN)
    assert token is not None
    query = entrance.link_of("https://pgsluice.example.com", token).partition("?")[2].encode()
    request = Request({"type": "http", "method": "GET", "path": "/login", "query_string": query, "headers": []})
    cookies = entrance.enter(request).headers.getlist("set-cookie")
    names = [f"__Host-{name}" if is_secure else name for name in (SESSION_COOKIE, CSRF_COOKIE)]
    assert {each.partition("=")[0]: "; Secure" in each for each in cookies} == dict.fromkeys(names, is_secure)
