"""A sink that is not ours, in the real worker: ``pgsluice worker module:Class``."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import APPLY_DEADLINE_S, Outcome, apply, replicate, succeed
from tests.page_files import write_files_of_page
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

SINK = "tests.worker.sinks.sqlite_sink:SqliteSink"
SLOW_SINK = '''
import threading
from tests.worker.sinks.sqlite_sink import SqliteSink

class SlowSink(SqliteSink):
    """Needs longer for a batch than a lease lasts."""

    def commit(self, receipts, stream_created):
        threading.Event().wait(12)
        return super().commit(receipts, stream_created)
'''

SINK_WITH_A_PACKAGE_OF_ITS_OWN = """
from shared.stamp import stamp
from tests.worker.sinks.sqlite_sink import LineWriter, SqliteSink

class StampingWriter(LineWriter):
    def write(self, partition, messages):
        yield b"".join(stamp(lines) for lines in super().write(partition, messages))

class StampingSink(SqliteSink):
    def writer(self):
        return StampingWriter()
"""
STAMP = """
def stamp(lines):
    return lines.replace(b'"position":', b'"stamp": "mine", "position":')
"""


def lines(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as database:
        return [json.loads(line) for (line,) in database.execute("SELECT line FROM lines ORDER BY rowid")]


def test_a_sink_named_by_its_class_gets_every_change_once_from_copy_and_stream(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "changes.db"
    keys = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True})
    keys |= {"sink-option": {"path": "overridden by the flag"}}
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 3)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO a VALUES (4); UPDATE a SET id = 5 WHERE id = 1; DELETE FROM a WHERE id = 2")
    succeed(replicate(keys))
    succeed(apply(keys, SINK, "--sink-option", f"path={path}"))
    operations = [line["operation"] for line in lines(path)]
    assert operations == ["READ", "READ", "READ", "INSERT", "UPDATE", "DELETE"]


def test_the_sink_of_the_page_holds_the_rows_of_copy_and_stream_as_the_page_of_rules_has_them(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.db"
    sequence = {"until-sequence": "current", "rules-config": "rules.yml", "sink-option": {"path": str(path)}}
    keys = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True} | sequence)
    source_database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, email text, born date, paid numeric, large text);"
        "INSERT INTO users VALUES (1, 'a@b', '2000-02-29', 1.50, repeat('large', 9999)), (2, 'a@b', NULL, 'NaN', NULL)"
    )
    succeed(replicate(keys))
    source_database.execute("UPDATE users SET id = 3 WHERE id = 1; DELETE FROM users WHERE id = 2")
    source_database.execute("INSERT INTO users VALUES (4, 'c@d', NULL, NULL, '')")
    succeed(replicate(keys))
    worker = PgsluiceProcess("worker", "upsert_sink:UpsertSink", config=keys, is_fresh=True)
    directory = worker.config_path.parent
    write_files_of_page("how-to/own-sink.md", directory)
    write_files_of_page("how-to/own-rule.md", directory)
    (directory / "key.txt").write_text("a long secret")
    succeed(Outcome(worker, APPLY_DEADLINE_S))
    with closing(sqlite3.connect(path)) as database:
        selection = 'SELECT id, born, paid, length(large), email FROM "public.users" ORDER BY id'
        first, second = database.execute(selection).fetchall()
    assert first[:-1] == (3, "2000-02-29", "1.50", 5 * 9999)
    assert second[:-1] == (4, None, None, 0)
    assert (len(first[-1]), len(second[-1])) == (12, 12)
    assert first[-1] != second[-1]


def test_a_sink_that_is_told_of_definitions_alters_its_tables_where_the_rows_are(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "changes.db"
    keys = configuration(group, source_database, None, nats_server, **{"track-ddl": True, "sink-option": {"path": str(path)}})
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    succeed(replicate(keys))
    source_database.execute(
        "INSERT INTO a VALUES (1, 'x'); ALTER TABLE a ADD COLUMN n text DEFAULT '7'; INSERT INTO a VALUES (2, 'y', '8')"
    )
    source_database.execute("ALTER TABLE a RENAME COLUMN v TO w; INSERT INTO a VALUES (3, 'z', '9'); ALTER TABLE a DROP COLUMN n")
    source_database.execute("INSERT INTO a VALUES (4, 'last')")
    succeed(replicate(keys))
    succeed(apply(keys, "tests.worker.sinks.sqlite_sink:SqliteTables"))
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT * FROM a ORDER BY id").fetchall() == [(1, "x"), (2, "y"), (3, "z"), (4, "last")]
        columns = [row[1] for row in database.execute("PRAGMA table_info(a)")]
    assert columns == ["id", "w"]
    told = [line["tag"] for line in lines(path) if line["operation"] == "DDL"]
    assert told == ["note", *["ALTER TABLE"] * 3], "what the table was like to begin with comes first"


def test_a_sink_may_stand_beside_a_package_called_like_one_of_ours(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "changes.db"
    keys = configuration(group, source_database, None, nats_server, **{"sink-option": {"path": str(path)}})
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO a SELECT generate_series(1, 3)")
    succeed(replicate(keys))
    command = ("worker", "stamping_sink:StampingSink", "--until-sequence", "current")
    worker = PgsluiceProcess(*command, config=keys, is_fresh=True)  # its tasks look in the directory that it was started in
    directory = worker.config_path.parent
    (directory / "shared").mkdir()
    (directory / "shared" / "__init__.py").write_text("")
    (directory / "shared" / "stamp.py").write_text(STAMP)
    (directory / "stamping_sink.py").write_text(SINK_WITH_A_PACKAGE_OF_ITS_OWN)
    succeed(Outcome(worker, APPLY_DEADLINE_S))
    assert [line["stamp"] for line in lines(path)] == ["mine"] * 3


@pytest.mark.long
def test_a_slow_sink_keeps_its_lease_and_finishes_its_batch_when_asked_to_stop(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "changes.db"
    (tmp_path / "slow_sink.py").write_text(SLOW_SINK)
    keys = configuration(group, source_database, None, nats_server, **{"sink-option": {"path": str(path)}})
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO a SELECT generate_series(1, 3)")
    succeed(replicate(keys))
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    with PgsluiceProcess("worker", "slow_sink:SlowSink", config=keys, env=environment) as worker:
        wait_until(lambda: path.exists() and lines(path), deadline_s=90, what="the first batch", interval_s=0.2)
        source_database.execute("INSERT INTO a SELECT generate_series(4, 6)")
        succeed(replicate(keys))
        worker.terminate()
        assert worker.wait() == 0, worker.log()
    ids = [line["after"]["id"] for line in lines(path)]
    assert ids in ([1, 2, 3], [1, 2, 3, 4, 5, 6])
