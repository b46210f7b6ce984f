"""Who gets in, from where, and what everybody is told to be safe."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from pgsluice.console.program import run
from pgsluice.console.server.access.entrance import SESSION_COOKIE
from pgsluice.console.server.access.origin import Proxies
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.access.sessions import LINK_S, SESSION_S, Sessions
from pgsluice.console.server.access.tokens import Tokens
from pgsluice.console.server.application import MOST_BODY_BYTES
from tests.console.server.served import CSRF_HEADER, Served
from tests.servers import NatsServer
from tests.servers.program import PgsluiceProcess


def test_without_a_token_nothing_is_told(served: Served) -> None:
    for header in (
        {},
        {"Authorization": "Bearer pgs_wrong"},
        {"Authorization": "Basic YTpi"},
        {"Cookie": "pgsluice-session=a.b"},
    ):
        answer = httpx.get(f"{served.address}/api/v1/", headers=header)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["remedy"]
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_first_token_is_an_admins_and_for_its_owner_alone(served: Served) -> None:
    for name in ("token", "tokens.json"):
        assert stat.S_IMODE((served.state_directory / name).stat().st_mode) == 0o600
    assert served.admin_token not in (served.state_directory / "tokens.json").read_text()
    assert served.admin_token not in served.process.log()
    assert "/login?code=" not in served.process.log(), "a log is no terminal"
    with served.client() as client:
        assert client.get("/").json() | {"version": ""} == {
            "version": "",
            "runs": False,
            "nats_connected": True,
            "who": "admin",
            "role": "admin",
            "values": True,
            "groups": ["*"],
        }


def command(served: Served, *arguments: str) -> str:
    """What ``pgsluice token`` prints."""
    with PgsluiceProcess("token", *arguments, "--server-state-dir", str(served.state_directory)) as process:
        assert process.wait() == 0, process.log()
        return process.stdout().strip()


def test_a_token_that_is_revoked_ends_with_its_sessions(served: Served) -> None:
    """By commands that are processes of their own, as a person gives them."""
    token = command(served, "create", "leaver", "--role", "operator")
    with served.client(token) as client, served.browser("leaver") as browser:
        assert client.get("/").json()["role"] == "operator"
        assert browser.get("/").json()["who"] == "leaver"
        assert command(served, "revoke", "leaver") == ""
        assert client.get("/").status_code == 401
        assert browser.get("/").status_code == 401


def test_a_token_made_anew_under_a_name_lets_in_nobody_whom_the_revoked_one_let_in(served: Served) -> None:
    served.token("renewed", "admin", values=True)
    with served.browser("renewed") as browser:
        link, streaming = served.link("renewed"), httpx.Client(base_url=browser.base_url, cookies=browser.cookies, timeout=30)
        with streaming, streaming.stream("GET", "/events") as events:
            served.run_command("token", "revoke", "renewed")
            renewed = served.token("renewed", "admin", values=True)
            assert browser.get("/").status_code == 401
            assert httpx.get(link).status_code == 401
            with served.client(renewed) as client:
                client.put("/groups/renewed/document", json={"yaml": "group: renewed"})
                for _ in events.iter_bytes():  # it ends before it tells of that
                    pass
                assert client.delete("/groups/renewed/document", headers={"If-Match": "*"}).status_code == 204
    with served.client(renewed) as client, served.browser("renewed") as browser:
        assert (client.get("/").status_code, browser.get("/").status_code) == (200, 200)


def test_tokens_that_are_made_and_revoked_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Each on its own, as commands do it."""
    file = tmp_path / "tokens.json"
    Tokens(file).create("leaver", Role.ADMIN, values=True)

    def change(number: int) -> None:
        if number == 5:
            Tokens(file).revoke("leaver")
        else:
            Tokens(file).create(f"at-once-{number}", Role.VIEWER, values=False)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(change, range(10)))
    assert sorted(token.name for token in Tokens(file).known()) == [f"at-once-{number}" for number in range(10) if number != 5]


def test_the_audit_names_whom_the_proxy_saw_and_not_whom_the_client_says(nats_server: NatsServer, tmp_path: Path) -> None:
    with Served(nats_server.url, tmp_path, behind_proxy=True, server_hosts=["pgsluice.example.com"]) as server:
        sockets = psutil.Process(server.process.pid).net_connections()
        [listening] = [each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN]
        headers = {"Authorization": f"Bearer {server.admin_token}", "Host": "pgsluice.example.com"}
        with httpx.Client(base_url=f"http://127.0.0.1:{listening}/api/v1", headers=headers) as client:
            client.delete("/groups/nobodys/document", headers={"X-Forwarded-For": "203.0.113.7, 198.51.100.9"})
            newest = client.get("/audit", params={"limit": "1", "refused": "true"}).json()["entries"][0]["entry"]
            assert (newest["target"], newest["client"]) == ("nobodys", "198.51.100.9")
            code = server.run_command("token", "link", "admin", f"--listen=127.0.0.1:{listening}").partition("code=")[2]
            let_in = httpx.get(f"http://127.0.0.1:{listening}/login", params={"code": code}, headers=headers)
        names = [each.partition("=")[0] for each in let_in.headers.get_list("set-cookie") if "; Secure" in each]
        assert names == ["__Host-pgsluice-session", "__Host-pgsluice-csrf"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.1.0.5", ["203.0.113.7, 198.51.100.9"], "198.51.100.9"),
        ("10.1.0.5", ["203.0.113.7", "198.51.100.9, 10.2.3.4"], "198.51.100.9"),
        ("::ffff:10.1.0.5", ["198.51.100.9"], "198.51.100.9"),
        ("192.0.2.1", ["198.51.100.9"], "192.0.2.1"),
        ("10.1.0.5", [], "10.1.0.5"),
        ("10.1.0.5", ["x" * 8000], "x" * 64),
    ],
)
def test_what_is_forwarded_is_believed_of_the_proxies_that_are_listed(peer: str, forwarded: list[str], client: str) -> None:
    networks = tuple(map(ipaddress.ip_network, ("10.1.0.5/32", "10.2.0.0/16")))
    assert Proxies(networks).client(peer, forwarded) == client


def test_the_audit_names_who_is_connected_where_no_proxy_is(served: Served) -> None:
    with served.client() as client:
        forged = {"X-Forwarded-For": "203.0.113.7"}
        assert client.put("/groups/nobodys/document", json={"yaml": "group: nobodys"}, headers=forged).status_code == 201
        newest = client.get("/audit", params={"limit": "1"}).json()["entries"][0]["entry"]
    assert (newest["target"], newest["client"]) == ("nobodys", "127.0.0.1")


def test_a_link_lets_one_browser_in_once(served: Served) -> None:
    link = served.link()
    first = httpx.get(link)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookies = first.headers.get_list("set-cookie")
    assert any("pgsluice-session" in each and "HttpOnly" in each and "SameSite=strict" in each for each in cookies)
    assert httpx.get(link).status_code == 401


def test_who_logs_out_has_a_cookie_that_lets_nobody_in(served: Served) -> None:
    with served.browser() as browser:
        copy = httpx.Client(base_url=browser.base_url, cookies=browser.cookies, timeout=30)
        with copy, copy.stream("GET", "/events") as events:
            assert browser.delete("/session", headers={CSRF_HEADER: "guess"}).status_code == 403
            assert copy.get("/").status_code == 200
            assert browser.delete("/session").status_code == 204
            assert (dict(browser.cookies), copy.get("/").status_code) == ({}, 401)
            with served.client() as client:
                client.put("/groups/logged-out/document", json={"yaml": "group: logged-out"})
            for _ in events.iter_bytes():  # it ends before it tells of that
                pass
    with served.client() as client, served.browser() as other:
        assert client.delete("/session").status_code == 409
        assert other.get("/").status_code == 200


def test_a_link_to_this_machine_has_a_name_that_no_other_server_on_it_knows(served: Served) -> None:
    """Cookies go to every port of the host that set them."""
    port = served.address.rpartition(":")[2]
    link = urlsplit(served.run_command("token", "link", "admin", f"--listen=127.0.0.1:{port}"))
    name = link.hostname or ""
    assert re.fullmatch("[0-9a-f]{16}[.]localhost", name)
    entered = httpx.get(f"{served.address}/login?{link.query}", headers={"Host": f"{name}:{port}"})
    assert entered.status_code == 303
    other = f"{'0' * 16}.localhost:{port}"
    assert httpx.get(f"{served.address}/", headers={"Host": other}).status_code == 403


def test_links_and_sessions_end_by_age(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    link, before = served.link(), time.time() - LINK_S - 1
    for file in (served.state_directory / "links").iterdir():
        os.utime(file, (before, before))
    assert httpx.get(link).status_code == 401
    admin = Tokens(served.state_directory / "tokens.json").named("admin")
    assert admin is not None
    sessions, now = Sessions(served.state_directory / "session-key", served.state_directory / "ended-sessions"), time.time()
    for age_s, status in ((SESSION_S - 60, 200), (SESSION_S + 1, 401)):
        monkeypatch.setattr(time, "time", lambda age_s=age_s: now - age_s)
        cookie, _ = sessions.begin(admin.id)
        monkeypatch.undo()
        assert httpx.get(f"{served.address}/api/v1/", cookies={SESSION_COOKIE: cookie}).status_code == status


def test_a_body_that_is_too_large_or_no_json_is_not_taken(served: Served) -> None:
    with served.client() as client:
        reason = "x" * MOST_BODY_BYTES
        refused = client.put("/groups/large/document", json={"yaml": "group: large", "reason": reason})
        assert (refused.status_code, "bytes" in refused.json()["detail"]) == (413, True)
        assert client.put("/groups/large/document", content=iter([b'{"', *[b"x" * 65536] * 20])).status_code == 413
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            form = client.put("/groups/large/document", content=b'{"yaml": "group: large"}', headers={"Content-Type": kind})
            assert form.status_code == 415


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "localhost:1"},
        {"Host": ""},
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_requests_for_others_or_from_others_are_refused(served: Served, headers: dict[str, str]) -> None:
    with served.client() as client:
        for path in ("/", "/health", served.address + "/"):
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
        assert client.get("/", headers={"Origin": served.address, "Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_every_answer_tells_browsers_to_be_careful(served: Served) -> None:
    for path in ("/", "/api/v1/", "/login?code=x", "/nothing"):
        headers = httpx.get(served.address + path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "server" not in headers


def test_what_is_not_there_is_a_problem_too(served: Served) -> None:
    with served.client() as client:
        assert client.get("/nothing").status_code == 404
        refused = client.delete("/health")
        assert (refused.status_code, refused.json()["title"]) == (405, "this cannot be done with it")
        assert "GET" in refused.headers["allow"]
        unknown = client.get("/audit", params={"limits": "1"})
        assert (unknown.status_code, unknown.json()["where"]) == (422, "limits")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--listen", "0.0.0.0:8470"], "without TLS"),
        (["--listen", "127.0.0.1"], "is not HOST:PORT"),
        (["--behind-proxy"], "without the name that browsers use"),
        (["--behind-proxy", "--server-hosts=a.example", "--listen=0.0.0.0:8470"], "for a proxy whose address it does not know"),
        (["--behind-proxy", "--server-hosts=a.example", "--server-proxies=nginx"], "neither an address nor a network"),
        (["--server-tls-cert", "/etc/hostname"], "server-tls-key"),
        (["--server-tls-cert", "/etc/hostname", "--server-tls-key", "/etc/hostname"], "cannot be used"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_not_be_safe_is_refused(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server", "--nats-url=nats://127.0.0.1:1", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_an_address_that_is_taken_is_said(served: Served, nats_server: NatsServer, tmp_path: Path) -> None:
    address = served.address.partition("//")[2]
    with PgsluiceProcess(
        "server", config={"nats-url": nats_server.url, "listen": address, "server-state-dir": str(tmp_path)}
    ) as process:
        assert process.wait() == 70
        assert "Address already in use" in process.log()


def test_the_header_of_our_page_is_asked_of_browsers_that_write(served: Served) -> None:
    with served.browser() as browser:
        assert CSRF_HEADER in browser.headers
        assert browser.get("/", headers={CSRF_HEADER: ""}).status_code == 200
