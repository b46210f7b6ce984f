"""A first start that fails leaves nothing, in NATS and at the source, and does not decide how the group is started later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgsluice.replicator.replicator import run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from pgsluice.shared.config.copy_settings import CopySettings
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames
from tests.replicated_group import Group
from tests.servers import Database, NatsServer, PostgresServer

COPY = CopySettings(
    then_stream=True,
    workers_per_table=1,
    connections=1,
    range_bytes=1 << 20,
    retry_errored=False,
    recopy=(),
)


def objects(replication: Group) -> list[str]:
    """Everything the group has anywhere."""

    async def in_nats() -> list[str]:
        async with connected(replication.nats, "test") as client:
            names = GroupNames(replication.name)
            streams = [
                s.name for s in (ChangeStream(client, names), SnapshotStream(client, names)) if await s.state() is not None
            ]
            return streams + (["bucket"] if await StateBucket(client, names).exists() else [])

    at_source = replication.source.execute(
        "SELECT 'slot' FROM pg_replication_slots WHERE slot_name = %s UNION ALL SELECT 'publication' FROM pg_publication"
        " WHERE pubname = %s",
        [replication.names.slot, replication.names.publication],
    )
    return asyncio.run(in_nats()) + [kind for (kind,) in at_source]


@pytest.fixture
def limited_role(replication: Group) -> Iterator[PostgresSettings]:
    """May replicate and read, and owns nothing."""
    role = f"limited_{replication.names.publication}"
    replication.source.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    yield replace(replication.source.settings, user=role)
    replication.source.execute(f"DROP OWNED BY {role}")
    replication.source.execute(f"DROP ROLE {role}")


def test_a_missing_grant_leaves_nothing_and_the_group_streams_afterwards(
    replication: Group, limited_role: PostgresSettings
) -> None:
    with pytest.raises(TerminalError, match="may not publish"):
        run(replace(replication.settings(copy=COPY), source=limited_role))
    assert objects(replication) == []
    replication.replicate()
    assert set(objects(replication)) == {replication.names.changes_stream, "bucket", "slot", "publication"}


def test_a_missing_table_leaves_nothing(replication: Group) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        replication.replicate(tables=("nowhere",))
    with pytest.raises(UsageError, match="does not exist"):
        replication.replicate(tables=("nowhere",), copy=COPY)
    assert objects(replication) == []


@pytest.mark.parametrize("copy", [None, COPY], ids=["stream", "copy and stream"])
def test_a_source_without_a_free_slot_leaves_nothing(nats_server: NatsServer, group: str, copy: CopySettings | None) -> None:
    with PostgresServer({"max_replication_slots": "1"}) as server:
        source = server.create_database("source")
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        replication = Group(group, source, nats_server.settings())
        source.execute("SELECT pg_create_logical_replication_slot('others', 'pgoutput')")
        with pytest.raises(TerminalError, match="SET max_replication_slots"):
            replication.replicate(copy=copy)
        assert objects(replication) == []
        source.execute("SELECT pg_drop_replication_slot('others')")
        replication.replicate()


def test_a_second_stream_that_nats_refuses_takes_the_first_one_along(source_database: Database, group: str) -> None:
    """One of 40 TiB fits into what the server may hold, two do not."""
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    with NatsServer() as server:
        replication = Group(group, source_database, server.settings())
        with pytest.raises(TerminalError, match="JetStream refuses stream"):
            replication.replicate(copy=COPY, max_bytes=40 << 40)
        assert objects(replication) == []
        replication.replicate(max_bytes=40 << 40)


def test_what_another_start_made_is_left(replication: Group, limited_role: PostgresSettings) -> None:
    replication.replicate()
    made = objects(replication)
    with pytest.raises(TerminalError):
        run(replace(replication.settings(), source=limited_role, tables=("t",), publish=("insert",)))
    assert objects(replication) == made
