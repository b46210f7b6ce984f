"""Values of rows are in no log, however a batch fails: a marker in every column, and everything that a worker says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess

REPOSITORY = Path(__file__).parents[2]
TEXT, NUMBER, DATE = "M4rker", "987654321", "1987-06-05"
MARKERS = (TEXT, NUMBER, DATE, TEXT.encode().hex())

COLUMNS = "id bigint PRIMARY KEY, t text, i bigint, n numeric, d date, j jsonb, b bytea, c text, r text"
ROW = f"""{NUMBER}, '{TEXT}', {NUMBER}, {NUMBER}.5, '{DATE}', '{{"a": "{TEXT}"}}', '{TEXT}', '{TEXT}', '{"a" * 40}{TEXT}'"""

REFUSALS = {
    "wrong type": "t integer",
    "wrong number": "i smallint",
    "too narrow": "n numeric(3)",
    "wrong date": "d integer",
    "too short": "c varchar(2)",
    "check": "c text CHECK (c = '')",
    "trigger": "c text",
}
RULES = r"""
tables:
  ruled:
    - type: transform
      column: r
      parameters: {type: regex, pattern: '(?=a)(a|aa)+$', replace: "x", time_limit_ms: 20}
"""
SINK = """
from tests.worker.sinks.sqlite_sink import LineWriter, SqliteSink

class Writer(LineWriter):
    def write(self, partition, messages):
        for body in super().write(partition, messages):
            raise ValueError(f"cannot take {body!r}") from KeyError(body)

class TaskFails(SqliteSink):
    def writer(self):
        return Writer()

class CommitFails(SqliteSink):
    def commit(self, receipts, stream_created):
        for receipt in receipts:
            raise ValueError(f"cannot take {receipt.body!r}")
"""


def says_no_value(*outputs: str) -> None:
    for output in outputs:
        for marker in MARKERS:
            line = next((line for line in output.splitlines() if marker in line), None)
            assert line is None, line


@pytest.fixture
def keys(source_database: Database, target_database: Database, nats_server: NatsServer, group: str) -> dict[str, Any]:
    return configuration(
        group, source_database, target_database, nats_server, **{"log-level": "debug", "target-disable-foreign-keys": False}
    )


def test_what_the_target_or_a_rule_refuses_is_quoted_nowhere(
    source_database: Database, target_database: Database, keys: dict[str, Any], tmp_path: Path
) -> None:
    tables = [f"refused_{number}" for number in range(len(REFUSALS))]
    for table, column in zip(tables, REFUSALS.values(), strict=True):
        source_database.execute(f"CREATE TABLE {table} ({COLUMNS})")
        name = column.split()[0]
        columns = COLUMNS.split(", ")
        columns[[each.split()[0] for each in columns].index(name)] = column
        target_database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    target_database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no %', new; END $$;"
        f" CREATE TRIGGER refuse BEFORE INSERT ON {tables[-1]} FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    source_database.execute(f"CREATE TABLE ruled ({COLUMNS})")
    succeed(replicate(keys))
    for table in (*tables, "ruled"):
        source_database.execute(f"INSERT INTO {table} VALUES ({ROW})")
    (tmp_path / "rules.yml").write_text(RULES)
    replicated = succeed(replicate(keys))
    applied = succeed(apply(keys | {"rules-config": str(tmp_path / "rules.yml")}))
    listed = succeed(Outcome(PgsluiceProcess("dead", "list", config={key: keys[key] for key in ("group", "nats-url")}), 30.0))
    assert len(listed.stdout.splitlines()) == 1 + len(tables) + 1, listed.stdout
    says_no_value(replicated.log, applied.log, listed.stdout, listed.log)


@pytest.mark.parametrize("sink", ["TaskFails", "CommitFails"])
def test_what_an_exception_of_a_sink_quotes_is_in_no_log(
    source_database: Database, keys: dict[str, Any], tmp_path: Path, sink: str
) -> None:
    (tmp_path / "quoting_sink.py").write_text(SINK)
    keys |= {"sink-option": {"path": str(tmp_path / "changes.db")}}
    source_database.execute(f"CREATE TABLE t ({COLUMNS})")
    succeed(replicate(keys))
    source_database.execute(f"INSERT INTO t VALUES ({ROW})")
    succeed(replicate(keys))
    command = ("worker", f"quoting_sink:{sink}", "--until-sequence", "current")
    failed = Outcome(PgsluiceProcess(*command, config=keys, env={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}), 120.0)
    assert failed.code == 70, failed.log
    assert "ValueError at " in failed.log
    assert "quoting_sink.py:" in failed.log
    says_no_value(failed.log, failed.stdout)
