"""A look at the publication, on a source that has no slot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pgsluice.replicator.membership.joining import Wishes
from pgsluice.replicator.membership.membership import Membership, store_membership
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.source.publication import Publication, create_publication, drop_publication
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import select_tables
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern
from tests.servers import Database, NatsServer

TABLES = """
    CREATE TABLE t (id bigint PRIMARY KEY);
    CREATE TABLE p (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE p1 (id bigint PRIMARY KEY)
"""
ATTACHING = "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)"  # in a transaction of its own, or it is born with p1


class Watched:
    """A publication of public.p and public.t, and a watch of it."""

    def __init__(self, source: Source, bucket: StateBucket, names: GroupNames) -> None:
        self.source, self.bucket, self.names = source, bucket, names
        wishes = Wishes(True, (TablePattern.parse("public.p"), TablePattern.parse("public.t")), ())
        self.watch = PublicationWatch(wishes, names, source, bucket)

    async def publish(self) -> Publication:
        tables = await select_tables(self.source, ["p", "t"], "public")
        return await create_publication(self.source, self.names, tables, ("insert",))


@pytest.fixture
async def watched(source_database: Database, nats_server: NatsServer, group: str) -> AsyncIterator[Watched]:
    source_database.execute(TABLES)
    source_database.execute(ATTACHING)
    async with connected(nats_server.settings(), "test") as client:
        names, source = GroupNames(group), await Source.connect(source_database.settings)
        bucket = StateBucket(client, names)
        await bucket.make(1)
        try:
            yield Watched(source, bucket, names)
        finally:
            await source.close()


async def test_what_happened_to_partitions_is_nothing_for_a_table_that_is_copied_anew(watched: Watched) -> None:
    publication = await watched.publish()
    membership = Membership.of(publication)
    without_partitions = replace(membership, members=tuple(replace(member, partitions=()) for member in membership.members))
    [attached] = (await watched.watch.begin(without_partitions, publication, ())).partition_changes
    assert (attached.qualified_name, "public.p1 was attached" in attached.reason) == ("public.p", True)
    found = await watched.watch.begin(without_partitions, publication, {attached.oid})
    assert found.partition_changes == ()
    assert [[each.name for each in member.partitions or ()] for member in found.members] == [["public.p1"], []]


async def test_a_publication_that_was_made_again_is_said_to_be_whatever_it_publishes(watched: Watched) -> None:
    """No start without a copy goes on with it."""
    await store_membership(watched.bucket, Membership.of(await watched.publish()))
    await watched.watch.verify()
    await drop_publication(watched.source, watched.names)
    await watched.publish()
    with pytest.raises(TerminalError, match="was dropped and created again") as raised:
        await watched.watch.verify()
    assert "--without-copy" not in raised.value.remedy
