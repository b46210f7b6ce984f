"""A process that is started with pg_flo's environment variables starts here, and is told the new names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.console.program import run
from pgsluice.shared import config
from pgsluice.shared.config import Notice
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from tests.configuration import OPTIONS, REQUIRED, load_from, yaml_file

SECRET = "hunter2"

REPLICATOR = {
    "PG_FLO_HOST": "db",
    "PG_FLO_PORT": "5433",
    "PG_FLO_DBNAME": "shop",
    "PG_FLO_USER": "app",
    "PG_FLO_PASSWORD": SECRET,
    "PG_FLO_GROUP": "orders",
    "PG_FLO_SCHEMA": "sales",
    "PG_FLO_NATS_URL": f"nats://pg_flo:{SECRET}@nats:4222",
    "PG_FLO_COPY_AND_STREAM": "true",
    "PG_FLO_MAX_COPY_WORKERS_PER_TABLE": "2",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration file in the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))


def noticed(values: config.Values, environment: dict[str, str]) -> list[Notice]:
    return list(config.notices(values, environment, OPTIONS))


def test_a_replicator_starts_from_pg_flos_variables_alone() -> None:
    settings = config.make(ReplicatorSettings, load_from({}, REPLICATOR, ReplicatorSettings))
    assert (settings.source.host, settings.source.port, settings.source.password) == ("db", 5433, SECRET)
    assert (settings.group, settings.schema) == ("orders", "sales")
    assert settings.copy is not None
    assert settings.copy.then_stream
    assert settings.copy.workers_per_table == 2


def test_a_worker_starts_from_pg_flos_variables_alone() -> None:
    environment = {
        "PG_FLO_GROUP": "orders",
        "PG_FLO_NATS_URL": "nats://nats:4222",
        "PG_FLO_TARGET_HOST": "target",
        "PG_FLO_TARGET_DBNAME": "warehouse",
        "PG_FLO_TARGET_USER": "loader",
        "PG_FLO_TARGET_PASSWORD": SECRET,
        "PG_FLO_TARGET_DISABLE_FOREIGN_KEYS": "1",
        "PG_FLO_BATCH_SIZE": "500",
    }
    values = load_from({}, environment, WorkerSettings, PostgresSinkSettings)
    assert config.make(PostgresSinkSettings, values).disable_foreign_keys
    assert config.make(WorkerSettings, values).named("postgres").batch_messages == 500


@pytest.mark.parametrize("tables", ["users orders sales.items", "users,orders,sales.items", " users, orders\tsales.items "])
def test_tables_are_apart_by_blanks_or_commas(tables: str) -> None:
    values = load_from({}, REPLICATOR | {"PG_FLO_TABLES": tables}, ReplicatorSettings)
    assert values.names("tables") == ("users", "orders", "sales.items")


def test_one_notice_gives_the_new_names_and_no_value() -> None:
    values = load_from({}, REPLICATOR, ReplicatorSettings)
    (notice,) = noticed(values, REPLICATOR | {"PG_FLO_TARGET_HOST": "not this command's", "PG_FLO_SCHEMA_": ""})
    assert notice.message == "variables of pg_flo are read: rename them"
    assert notice.name == ", ".join(sorted(REPLICATOR))
    assert notice.place == "environment"
    for name in REPLICATOR:
        assert name.replace("PG_FLO_", "PGSLUICE_") in notice.reason
    assert SECRET not in repr(notice)


def test_our_own_variable_wins_and_says_so_where_the_two_differ() -> None:
    environment = REPLICATOR | {"PGSLUICE_HOST": "db2", "PGSLUICE_PORT": "5433", "PGSLUICE_PASSWORD": SECRET + "3"}
    values = load_from({}, environment, ReplicatorSettings)
    assert (values.text("host"), values.text("password")) == ("db2", SECRET + "3")
    *others, renamed = noticed(values, environment)
    assert [(notice.message, notice.name, notice.reason) for notice in others] == [
        ("a setting has no effect", "PG_FLO_HOST", "PGSLUICE_HOST has another value, and wins: remove one of them"),
        ("a setting has no effect", "PG_FLO_PASSWORD", "PGSLUICE_PASSWORD has another value, and wins: remove one of them"),
    ]
    assert "PG_FLO_HOST" not in renamed.name
    assert "PG_FLO_PORT" not in renamed.name
    assert SECRET not in repr([*others, renamed])


def test_they_win_over_the_file_and_lose_to_flags(tmp_path: Path) -> None:
    flags = {"config": yaml_file(tmp_path, REQUIRED | {"schema": "from_file", "port": "1"}), "port": "7"}
    environment = {"PG_FLO_SCHEMA": "from_pg_flo", "PG_FLO_PORT": "9"}
    values = load_from(flags, environment, ReplicatorSettings)
    assert (values.text("schema"), values.number("port")) == ("from_pg_flo", 7)
    assert values.places["schema"] == "PG_FLO_SCHEMA"
    assert [notice.name for notice in noticed(values, environment)] == ["PG_FLO_SCHEMA"]


def test_a_value_that_cannot_be_used_is_named_by_the_variable_that_was_set() -> None:
    with pytest.raises(UsageError, match=r"port 'x' \(PG_FLO_PORT\) is not a whole number"):
        load_from({}, REPLICATOR | {"PG_FLO_PORT": "x"}, ReplicatorSettings)
    with pytest.raises(UsageError, match=r"track-ddl 'perhaps' \(PG_FLO_TRACK_DDL\)"):
        load_from({}, REPLICATOR | {"PG_FLO_TRACK_DDL": "perhaps"}, ReplicatorSettings)


def test_a_misspelt_one_is_told_its_right_name() -> None:
    values = load_from({}, REPLICATOR, ReplicatorSettings)
    (first, _) = noticed(values, REPLICATOR | {"PG_FLO_SHEMA": "x", "PG_FLO_BIN": "/usr/bin/pg_flo"})
    assert (first.name, first.reason) == ("PG_FLO_SHEMA", "no such variable; did you mean PGSLUICE_SCHEMA?")


def test_mistakes_in_them_are_told_without_a_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (
        REPLICATOR | {"PG_FLO_NATS_URL": f"nats://x:{SECRET}@127.0.0.1:1", "PG_FLO_TRACK_DDL": "perhaps"}
    ).items():
        monkeypatch.setenv(name, value)
    assert run(["replicator"]) == 2
    monkeypatch.delenv("PG_FLO_TRACK_DDL")
    monkeypatch.setenv("PG_FLO_HOST", "")
    assert run(["replicator"]) == 2
    written = capsys.readouterr().err
    assert "track-ddl 'perhaps' (PG_FLO_TRACK_DDL)" in written
    assert "host is not set: give --host, PGSLUICE_HOST" in written
    assert SECRET not in written
