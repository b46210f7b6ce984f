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
from tests.servers.permitted_nats import PermittedNats
from tests.waiting import wait_until

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
