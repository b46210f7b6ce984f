"""Every PostgreSQL version that pgsluice supports, as source and as target: copied under load, followed, taken down again.

``make test-versions`` runs all pairs, ``make test`` the oldest and the newest, each once as source and once as target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end import random_load, version_tables
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import Outcome, succeed
from tests.end_to_end.random_load import RandomLoad
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.servers.postgres_binaries import NEWEST, VERSIONS
from tests.waiting import wait_until

pytestmark = pytest.mark.versions

DEADLINE_S = 120.0
OFTEN = [(14, NEWEST), (NEWEST, 14)]
OLDER = [version for version in VERSIONS if version != NEWEST]
EVERY = [*((version, NEWEST) for version in VERSIONS), *((NEWEST, version) for version in OLDER), (14, 14), (16, 14)]
RARELY = [pytest.param(*pair, marks=pytest.mark.long) for pair in EVERY if pair not in OFTEN]


@pytest.fixture
def databases(
    postgres_of: Callable[[int], PostgresServer], source_version: int, target_version: int, group: str
) -> Iterator[tuple[Database, Database]]:
    name = group.replace("-", "_")
    source = postgres_of(source_version).create_database(f"source_{name}")
    target = postgres_of(target_version).create_database(f"target_{name}")
    yield source, target
    source.drop()
    target.drop()


@pytest.mark.parametrize(("source_version", "target_version"), [*OFTEN, *RARELY])
def test_a_target_of_any_version_equals_a_source_of_any_version(
    databases: tuple[Database, Database], nats_server: NatsServer, group: str
) -> None:
    source, target = databases
    options = {"copy-and-stream": True, "target-sync-sequences": True, "copy-range-bytes": "1MiB"}
    keys = configuration(group, source, target, nats_server, **options)
    tables = (*version_tables.create_tables(source, target), *random_load.TABLES)
    RandomLoad.create_tables(source)
    with RandomLoad(source, seed=source.server.version) as load, GroupUnderTest(keys):
        wait_until(lambda: follows(target), deadline_s=DEADLINE_S, what="changes after the copy", interval_s=0.2)
        version_tables.change(source)
        source.execute("INSERT INTO strict VALUES (1000, 'too long for the target')")
        load.stop()
        wait_until(lambda: dead(keys, "list", "--json"), deadline_s=DEADLINE_S, what="the dead letter", interval_s=0.5)
        target.execute("ALTER TABLE strict ALTER note TYPE text")
        dead(keys, "replay", "--all", "--wait", "60")
        wait_until(lambda: differing(source, target, tables) == [], deadline_s=DEADLINE_S, what="equality", interval_s=0.5)
        assert column_names(target, "derived") == ["id", "n"]
        assert target.execute("INSERT INTO numbered (note) VALUES ('next') RETURNING id > 110") == [(True,)]
        status = json.loads(succeed(Outcome(PgsluiceProcess("status", "--json", config=keys), 30.0)).stdout)
        assert "errored" not in json.dumps(status)
    succeed(Outcome(PgsluiceProcess("drop", "--yes", config=keys), 30.0))
    left = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert source.execute(left) + source.execute("SELECT pubname FROM pg_publication") == []


def follows(target: Database) -> bool:
    if not target.execute("SELECT to_regclass('pgsluice.applied') IS NOT NULL")[0][0]:
        return False
    return bool(target.execute("SELECT coalesce(max(sequence), 0) > 0 FROM pgsluice.applied")[0][0])


def differing(source: Database, target: Database, tables: tuple[str, ...]) -> list[str]:
    """Tables whose rows are not equal."""
    there, here = version_tables.digests(source, tables), version_tables.digests(target, tables)
    return [table for table in tables if there[table] != here[table]]


def column_names(database: Database, table: str) -> list[str]:
    query = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
    return [name for (name,) in database.execute(query, [table])]


def dead(keys: dict[str, Any], *arguments: str) -> str:
    """What ``pgsluice dead`` prints."""
    needed = {key: keys[key] for key in ("group", "nats-url")}
    return succeed(Outcome(PgsluiceProcess("dead", *arguments, config=needed), 90.0)).stdout
