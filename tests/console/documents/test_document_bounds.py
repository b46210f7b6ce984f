"""Whatever an option of ours makes a process open, start or connect to is bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.console.documents.document_bounds import DocumentBounds, names_files
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError
from tests.configuration import OPTIONS

HERE = DocumentBounds(hosts=("good.example", "*.good.example", "10.0.0.0/8", "2001:db8::/32"))
CONNECTING = [
    option
    for option in OPTIONS
    if not option.no_effect
    and (
        option.kind in (Kind.URL, Kind.SERVERS, Kind.DATABASE)
        or option.name.endswith(("host", "hosts", "url", "brokers", "webhook", "endpoint"))
    )
    and option.name != "server-hosts"  # what a server is called by
]
FILES = [option for option in OPTIONS if option.kind is Kind.FILE or option.name.endswith(("-dir", "-file"))]


def refused(bounds: DocumentBounds, **settings: object) -> str:
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    try:
        bounds.check(GroupDocument("shop", {"group": "shop"} | named), {"GROUP_SHOP_HOST": "evil.example", "OURS": "s3cret"})
    except UsageError as error:
        return error.fact
    return ""


def at(option: Option, host: str) -> str:
    forms = {Kind.URL: f"https://{host}/x", Kind.SERVERS: f"nats://u@{host}:4222", Kind.DATABASE: f"postgres://u@{host}/d"}
    return forms.get(option.kind, host)


@pytest.mark.parametrize("option", CONNECTING, ids=lambda option: option.name)
def test_no_option_names_a_host_that_is_not_listed(option: Option) -> None:
    assert f"a host that is not listed ({option.name})" in refused(HERE, **{option.name: at(option, "evil.example")})
    assert f"a host that is not listed ({option.name})" in refused(HERE, **{option.name: at(option, "${GROUP_SHOP_HOST}")})
    assert refused(HERE, **{option.name: at(option, "db.good.example")}) == ""
    assert refused(DocumentBounds(), **{option.name: at(option, "evil.example")}) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", "good.example,evil.example"),
        ("host", "good.example.evil.example"),
        ("host", "10.0.0.1,192.0.2.1"),
        ("host", "/var/run/postgresql"),
        ("source-url", "postgres:///d?host=evil.example"),
        ("source-url", "postgres://good.example@evil.example/d"),
        ("nats-url", "good.example,evil.example"),
        ("kafka-brokers", ["good.example:9092", "evil.example:9092"]),
        ("kafka-brokers", "[2001:db9::1]:9092"),
        ("search-url", ["https://good.example", "https://good.example@evil.example"]),
        ("subscriptions-allow-hosts", ["10.0.0.0/7"]),
        ("webhook-allow-hosts", "127.0.0.1"),
    ],
)
def test_no_spelling_of_a_host_gets_past(name: str, value: object) -> None:
    assert "a host that is not listed" in refused(HERE, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", "good.example,DB.good.example"),
        ("host", "10.1.2.3"),
        ("kafka-brokers", "[2001:db8::1]:9092 10.0.0.1:9092"),
        ("webhook-allow-hosts", "[2001:db8::]"),
    ],
)
def test_what_is_listed_is_taken_however_it_is_spelled(name: str, value: object) -> None:
    assert refused(HERE, **{name: value}) == ""


@pytest.mark.parametrize("option", FILES, ids=lambda option: option.name)
def test_no_option_names_a_file_outside_of_the_directories(option: Option, tmp_path: Path) -> None:
    inside, bounds = tmp_path / "inside", DocumentBounds(directories=(str(tmp_path / "inside"),))
    inside.mkdir()
    (inside / "link").symlink_to("/etc")
    assert names_files(option)
    for path in ("/etc/passwd", f"{inside}/../passwd", f"{inside}/link/passwd", f"{inside}x/passwd", "~/.pgpass"):
        assert f"a file that is in none of the directories ({option.name})" in refused(bounds, **{option.name: path})
    assert refused(bounds, **{option.name: f"{inside}/rules.yaml"}) == ""
    assert f"({option.name})" in refused(DocumentBounds(), **{option.name: f"{inside}/rules.yaml"})


@pytest.mark.parametrize(
    ("settings", "allowing"),
    [
        ({"alert-command": ["/bin/tell", "x"]}, {"alert_commands": ("/bin/tell",)}),
        ({"alert-command": "/bin/tell x"}, {"alert_commands": ("/bin/tell",)}),
        ({"workers": ["own=shop.sinks:Lines"]}, {"sinks": ("shop.sinks:*",)}),
        ({"spark": {"spark.jars": "x"}}, {"spark": ("spark.jars",)}),
        ({"spark": '{"master": "spark://evil.example:7077"}'}, {"spark": ("master",)}),
        ({"spark": {"spark.pyspark.python": "x"}}, {"spark": ("spark.pyspark.*",)}),
        ({"user": "${OURS}"}, {"variables": ("OUR*",)}),
        ({"user": "${OURS:-x}"}, {"variables": ("OURS",)}),
    ],
)
def test_programs_code_and_variables_are_named_where_they_are_listed(
    settings: dict[str, object], allowing: dict[str, tuple[str, ...]]
) -> None:
    told = refused(DocumentBounds(), **settings)
    assert told.startswith("the document of group 'shop' may not name ")
    assert "s3cret" not in told
    assert refused(replace(DocumentBounds(), **allowing), **settings) == ""


def test_what_needs_no_word_of_an_administrator() -> None:
    plain = {"workers": ["postgres", "lines=stdout"], "spark": {"master": "local[4]", "memory": "2g"}, "sslrootcert": "system"}
    assert refused(DocumentBounds(), **plain, host="db", password="${GROUP_SHOP_PASSWORD}", user="$${NOT_ONE}") == ""
