"""URLs of databases: what they say, which are refused, and which place wins where single options are given too."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pgsluice.shared import config
from pgsluice.shared.config.postgres_url import url_parts
from pgsluice.shared.config.settings import ReplicatorSettings, StatusSettings, WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.postgres.session_settings import libpq_parameters
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from tests.configuration import load_from

GOOD = (
    "postgres://ada:hunter2@db.example.com:5433/shop",
    "postgresql://ada@db.example.com/shop",
    "postgres://ada:p%40ss%2Fw%25rd%3A%3F%23@db/shop",
    "postgres://ada:p:w@db/shop",
    "postgres://ada:gr%C3%BC%C3%9Fe@db/sh%20op",
    "postgres://ada@[::1]:5433/shop",
    "postgres://ada@%2Fvar%2Frun%2Fpostgresql/shop",
    "postgres://ada@/shop?host=/var/run/postgresql&port=5433",
    "postgres:///?user=ada&password=hunter2&host=db&dbname=shop",
    "postgres://ada:hunter2@db/shop?sslmode=verify-full&sslrootcert=/etc/root.crt&channel_binding=require",
    "postgres://ada@db/shop?ssl=true",
    "postgres://ada@one,two/shop",
    "postgres://ada@one:5433,two:5433/shop",
)

BAD = (
    "db.example.com",
    "host=db user=ada password=hunter2",
    "jdbc:postgresql://db/shop?password=hunter2",
    "mysql://ada:hunter2@db/shop",
    "postgres://ada:hunter2",
    "postgres://ada:hunter2/x@db/shop",
    "postgres://ada:1/hunter2@db/shop",
    "postgres://ada:hunter2@2@db/shop",
    "postgres://ada:1?hunter2@db/shop",
    "postgres://ada:1#hunter2@db/shop",
    "postgres://ada:1?x=hunter2@db/shop",
    "postgres://ada:hunter2%@db/shop",
    "postgres://ada:hunter2%FF@db/shop",
    "postgres://ada:hunter2%00@db/shop",
    "postgres://ada:hunter 2@db/shop",
    "postgres://ada:hunter2@db/shop#x",
    "postgres://ada:hunter2@db/shop/x",
    "postgres://ada:hunter2@db:port/shop",
    "postgres://ada:hunter2@one:1,two:2/shop",
    "postgres://ada:x@db/shop?password=hunter2",
    "postgres://ada@db/shop?password=x&hunter2=y",
    "postgres://ada@db/shop?password=x&hunter2",
    "postgres://ada:hunter2@db/shop?target_session_attrs=any",
    "postgres://ada:hunter2@[::1/shop",
)


@pytest.mark.parametrize("url", GOOD)
def test_a_url_says_what_it_says_to_libpq(url: str) -> None:
    theirs = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(url).items()}
    (port,) = {each or "5432" for each in theirs.get("port", "").split(",")}
    assert url_parts(url) == theirs | {"port": port}


@pytest.mark.parametrize("url", BAD)
def test_what_is_not_such_a_url_is_refused_and_nothing_of_it_is_shown(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_from({"group": "g", "nats-url": "n", "source-url": url}, {}, ReplicatorSettings)
    sentence = str(raised.value)
    assert sentence.startswith("source-url (--source-url) ")
    assert "hunter2" not in sentence + repr(raised.value)
    assert "ada" not in sentence
    assert "\n" not in sentence, "what the URL would have said is not missing too"


def test_a_parameter_that_libpq_knows_is_named_and_no_other() -> None:
    with pytest.raises(ValueError, match="holds the parameter target_session_attrs that is not taken here"):
        url_parts("postgres://db/shop?target_session_attrs=any")
    with pytest.raises(ValueError, match="holds a parameter that is not taken here"):
        url_parts("postgres://db/shop?hunter2=any")


def source(flags: dict[str, str], environment: dict[str, str], file: str, directory: Path) -> str:
    """The source's settings as one text: user:password@host:port/dbname."""
    path = directory / "pgsluice.yaml"
    path.write_text("group: g\nnats-url: n\n" + file)
    values = load_from({"config": str(path)} | flags, environment, ReplicatorSettings)
    found = config.make(ReplicatorSettings, values).source
    return f"{found.user}:{found.password}@{found.host}:{found.port}/{found.dbname}"


WHOLE = "postgres://ada:x@db:5433/shop"


@pytest.mark.parametrize(
    ("flags", "environment", "file", "found"),
    [
        ({"source-url": WHOLE}, {}, "", "ada:x@db:5433/shop"),
        ({}, {"PGSLUICE_SOURCE_URL": WHOLE}, "", "ada:x@db:5433/shop"),
        ({}, {}, f"source-url: {WHOLE}\n", "ada:x@db:5433/shop"),
        ({}, {"URL": WHOLE}, "source-url: ${URL}\n", "ada:x@db:5433/shop"),
        ({"source-url": WHOLE}, {}, "source-url: ${UNSET}\npassword: ${UNSET}\nhost: other\nport: 1\n", "ada:x@db:5433/shop"),
        ({"source-url": WHOLE}, {"PGSLUICE_SOURCE_URL": "nonsense"}, "", "ada:x@db:5433/shop"),
        ({"host": "standby"}, {"PGSLUICE_SOURCE_URL": WHOLE}, "", "ada:x@standby:5433/shop"),
        ({}, {"PGSLUICE_PASSWORD": "y"}, f"source-url: {WHOLE}\n", "ada:y@db:5433/shop"),
        ({"source-url": "postgres://db/shop"}, {"PGSLUICE_PASSWORD": "y"}, "user: bob\nport: 7\n", "bob:y@db:5432/shop"),
        ({"source-url": "postgres://db/shop"}, {}, "user: bob\npassword: z\n", "bob:z@db:5432/shop"),
    ],
)
def test_a_url_counts_as_its_parts_in_the_place_where_it_is_given(
    tmp_path: Path, flags: dict[str, str], environment: dict[str, str], file: str, found: str
) -> None:
    assert source(flags, environment, file, tmp_path) == found


@pytest.mark.parametrize(
    ("flags", "file", "sentence"),
    [
        ({"source-url": WHOLE, "host": "b"}, "", "host and source-url are both given (--source-url): give one of them"),
        ({}, f"source-url: {WHOLE}\npassword: y\n", "password and source-url are both given ("),
        ({"source-url": "postgres://ada@db/shop", "port": "1"}, "", "port and source-url are both given (--source-url)"),
        ({"source-url": "postgres://db/shop"}, "", "user is not set: give --user, PGSLUICE_USER or 'user:' in "),
        ({"source-url": "postgres://a@db:70000/shop"}, "", "port '70000' (--source-url) is not from 1 to 65535"),
        ({"source-url": "postgres://a@db/shop?sslmode=no"}, "", "sslmode 'no' (--source-url) is not one of disable,"),
    ],
)
def test_what_is_said_twice_in_one_place_or_wrong_is_told(
    tmp_path: Path, flags: dict[str, str], file: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as raised:
        source(flags, {}, file, tmp_path)
    assert str(raised.value).startswith(sentence)


def test_a_url_can_come_from_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(WHOLE + "\n")
    assert source({"source-url-file": str(tmp_path / "url")}, {}, "host: other\n", tmp_path) == "ada:x@db:5433/shop"
    (tmp_path / "url").write_text("postgres://ada:hunter2\n")
    with pytest.raises(UsageError, match=r"^source-url \(--source-url-file\) is not the URL") as raised:
        source({"source-url-file": str(tmp_path / "url")}, {}, "", tmp_path)
    assert "hunter2" not in str(raised.value)


def test_source_and_target_have_urls_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "root.crt").touch()
    flags = {
        "group": "g",
        "nats-url": "n",
        "source-url": "postgres://ada@db/shop",
        "target-url": f"postgres://eve:x@there/warehouse?sslmode=verify-full&sslrootcert={tmp_path}/root.crt",
    }
    values = load_from(flags, {}, WorkerSettings, PostgresSinkSettings)
    target = config.make(PostgresSinkSettings, values).target
    assert (target.host, target.user, target.dbname, target.sslmode) == ("there", "eve", "warehouse", "verify-full")
    assert target.sslrootcert == f"{tmp_path}/root.crt"


def test_status_asks_the_source_that_a_url_names() -> None:
    flags = {"group": "g", "nats-url": "n", "source-url": "postgres://ada@db/shop?channel_binding=require"}
    found = config.make(StatusSettings, load_from(flags, {}, StatusSettings)).source
    assert found is not None
    assert libpq_parameters(found)["channel_binding"] == "require"
