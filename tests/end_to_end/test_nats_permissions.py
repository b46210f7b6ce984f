"""Whole groups with a NATS user that has the printed permissions, in streams that an administrator created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import Outcome, apply, succeed
from tests.end_to_end.test_sql_pipelines import PIPELINES, assert_same, create_films
from tests.servers import Database, PgsluiceProcess
from tests.servers.permitted_nats import ADMINISTRATOR, PermittedNats
from tests.waiting import wait_until
from tests.worker.sinks.nats.target import TargetStreamReader

POISON = "far too long for the target"


def command(keys: dict[str, Any], *arguments: str) -> str:
    return succeed(Outcome(PgsluiceProcess(*arguments, config=keys), 120.0)).stdout


def notes(database: Database) -> list[tuple[Any, ...]]:
    return database.execute("SELECT id, note::text FROM t ORDER BY id")


@pytest.mark.timeout(300)
def test_a_group_copies_streams_and_replays_letters_with_the_printed_permissions(
    source_database: Database, target_database: Database, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t VALUES (1, 'copied')")
    target_database.execute("CREATE TABLE t (id int PRIMARY KEY, note varchar(12))")
    with PermittedNats({group: ()}) as nats:
        nats.create(group)
        keys = configuration(group, source_database, target_database, nats) | nats.keys(group) | {"copy-and-stream": "true"}
        with GroupUnderTest(keys):
            wait_until(lambda: notes(target_database) == notes(source_database), what="the copied row")
            source_database.execute(f"INSERT INTO t VALUES (2, 'streamed'), (3, '{POISON}')")
            listed = wait_until(lambda: command(keys, "dead", "list", "--json"), what="the letter", interval_s=1)
            assert notes(target_database) == [(1, "copied"), (2, "streamed")]
            target_database.execute("ALTER TABLE t ALTER note TYPE text")
            command(keys, "dead", "replay", json.loads(listed)["position"])
            wait_until(lambda: notes(target_database) == notes(source_database), what="the replayed row")
            command(keys, "pause", "--wait", "60s")
            command(keys, "resume")
            assert "public.t" in command(keys, "tables", "list")
            for looking in (["status"], ["messages"], ["check", "--nats"]):
                command(keys, *looking)
        assert nats.violations() == []


@pytest.mark.timeout(300)
def test_a_pipeline_runs_with_the_printed_permissions(
    source_database: Database, target_database: Database, group: str, tmp_path: Path
) -> None:
    create_films(source_database)
    file = tmp_path / "pipelines.yaml"
    file.write_text(PIPELINES.replace("NAME-OF-GROUP", group))
    with PermittedNats({group: ("--pipeline",)}) as nats:
        nats.create(group, "--pipeline")
        keys = configuration(group, source_database, target_database, nats) | nats.keys(group) | {"pipelines-config": str(file)}
        command(keys, "run", "film_ratings")
        succeed(apply(keys))
        assert_same(source_database, target_database)
        command(keys, "runs", "list", "film_ratings")
        assert nats.violations() == []


def told_of(told: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(line["operation"], (line.get("after") or {}).get("id")) for line in told]


@pytest.mark.timeout(300)
def test_a_worker_nats_lives_with_the_printed_permissions(source_database: Database, group: str) -> None:
    """It makes no stream: the administrator does."""
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    flag = f"--nats-stream={group}-out"
    with PermittedNats({group: (flag,)}) as nats:
        nats.create(group, flag, "--nats-stream-max-age=7d")
        more = {"nats-stream": f"{group}-out", "nats-stream-max-age": "7d", "track-ddl": True, "ddl": "apply"}
        keys = configuration(group, source_database, None, nats) | nats.keys(group) | more
        reader = TargetStreamReader(nats.settings_of(ADMINISTRATOR), f"{group}-out")
        worker = PgsluiceProcess("worker", "nats", config=keys)
        with PgsluiceProcess("replicator", config=keys) as replicator, worker:
            replicator.wait_for_log("replicating")
            source_database.execute("INSERT INTO t VALUES (1)")
            expected = [("DDL", None), ("INSERT", 1)]
            wait_until(lambda: reader.last_sequence() and told_of(reader.lines()) == expected, what="the first row")
            worker.kill()
            source_database.execute("INSERT INTO t VALUES (2)")
            source_database.execute("ALTER TABLE t ADD more int")
            worker.start()
            expected += [("INSERT", 2), ("DDL", None)]
            wait_until(lambda: told_of(reader.lines()) == expected, what="what came while the worker was dead")
            nats.kill()
            nats.start()
            source_database.execute("INSERT INTO t VALUES (3)")
            wait_until(lambda: told_of(reader.lines()) == [*expected, ("INSERT", 3)], what="the row after NATS was killed")
            for looking in (["status"], ["check", "--nats"], ["check", "--sink", "nats"]):
                command(keys, *looking)
        assert nats.violations() == []
        command(keys | {"nats-user": ADMINISTRATOR}, "drop", "--yes")
