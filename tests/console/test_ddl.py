"""``pgsluice ddl``: what an administrator is given to install, and what is told by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgsluice.console.program import run
from pgsluice.replicator.definitions.installation import event_trigger_names
from pgsluice.shared.wire.names import GroupNames
from tests.configuration import yaml_file
from tests.replicator.definitions.captured import Stream
from tests.servers import Database


@pytest.fixture
def config(tmp_path: Path, source_database: Database, group: str) -> str:
    source_database.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE SCHEMA sales CREATE TABLE orders (a int)")
    source_database.execute(f"CREATE PUBLICATION {GroupNames(group).publication} FOR TABLE t")
    server = source_database.server
    keys = {"group": group, "host": server.host, "port": str(server.port), "dbname": source_database.dbname, "user": server.user}
    return yaml_file(tmp_path, keys | {"tables": "[t, sales.*]"})


def script(config: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert run(["ddl", "sql", *options, "--config", config]) == 0
    return capsys.readouterr().out


def test_the_sql_installs_the_capture_as_often_as_it_is_run(
    config: str, source_database: Database, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written = script(config, capsys)
    for _ in range(2):
        source_database.execute(written)
    stream = Stream.begin(source_database, GroupNames(group))
    assert stream.after("ALTER TABLE t ADD b int", "CREATE TABLE sales.lines (a int)", "CREATE TABLE other (a int)") == [
        "table t(*1:a:integer!, 2:b:integer)",
        "table sales.lines(1:a:integer) unpublished",
    ]


def test_the_sql_removes_it_too(config: str, source_database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    source_database.execute(script(config, capsys))
    source_database.execute(script(config, capsys, "--remove"))
    assert source_database.execute("SELECT to_regnamespace('pgsluice'), (SELECT count(*) FROM pg_event_trigger)") == [(None, 0)]


def test_the_sql_is_written_without_asking_the_source_and_says_what_each_part_is_for(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--group", group, "--host", "nowhere.invalid", "--dbname", "shop", "--user", "Shop's app", "--publication", "theirs"]
    assert run(["ddl", "sql", *flags]) == 0
    written = capsys.readouterr().out
    assert written.startswith(f"-- Capture of schema changes for the group {group}: ")
    assert written.endswith("COMMIT;\n")
    assert 'GRANT USAGE ON SCHEMA pgsluice TO "Shop\'s app";' in written
    assert "INSERT INTO" not in written.partition("CREATE UNLOGGED TABLE IF NOT EXISTS")[2].partition("CREATE OR REPLACE")[0]
    paragraphs = [part for part in written.split("\n\n") if part.startswith(("CREATE", "DO", "GRANT", "REVOKE", "COMMENT"))]
    assert paragraphs == [], "a statement has no comment"
    assert re.findall(r"^CREATE EVENT TRIGGER (\w+)", written, re.MULTILINE) == event_trigger_names(GroupNames(group))


def test_where_event_triggers_cannot_be_had_a_table_is_noted_by_hand(
    config: str, source_database: Database, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source_database.execute(script(config, capsys, "--no-triggers"))
    stream = Stream.begin(source_database, GroupNames(group))
    assert stream.after("ALTER TABLE t ADD b int") == []
    assert run(["ddl", "note", "t", "sales.orders", "--config", config]) == 0
    assert stream.read() == ["table t(*1:a:integer!, 2:b:integer)", "table sales.orders(1:a:integer) unpublished"]
    assert {event.tag for event in stream.events} == {"note"}


@pytest.mark.parametrize(
    ("tables", "code", "sentence"),
    [
        (["absent"], 2, 'noting the definition of "public"."absent" failed: relation "public.absent" does not exist'),
        (["sales.*"], 2, "'sales.*' may be several tables: name each of them"),
        (["a.b.c"], 2, "'a.b.c' is not a table"),
        ([], 2, "Missing argument 'TABLE...'"),
    ],
)
def test_what_cannot_be_noted_is_said(
    config: str,
    source_database: Database,
    capsys: pytest.CaptureFixture[str],
    tables: list[str],
    code: int,
    sentence: str,
) -> None:
    source_database.execute(script(config, capsys))
    assert run(["ddl", "note", *tables, "--config", config]) == code
    assert sentence in capsys.readouterr().err


def test_without_the_capture_nothing_can_be_noted(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ddl", "note", "t", "--config", config]) == 70
    assert "is not installed: let an administrator run the statements that 'pgsluice ddl sql' prints" in capsys.readouterr().err
