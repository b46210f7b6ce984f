"""What the catalog is asked about Relation messages, and how often."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.replicator.source.relation_catalog import RelationCatalog, _Snapshot
from pgsluice.replicator.source.source import Source
from pgsluice.shared.pgoutput.messages import Relation, RelationColumn
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import ReplicaIdentity
from tests.servers import Database

LATER = LSN(1 << 60)
"""A commit for which everything counts that is seen."""


def test_published_tables_are_looked_up_together_and_again_for_transactions_that_could_not_be_seen_then(
    source_database: Database,
) -> None:
    """A group of 500 tables would ask 500 times before its first rows."""
    source = source_database
    source.execute("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (LIKE a INCLUDING ALL); CREATE TABLE c (id int)")
    names = GroupNames("catalog")
    source.execute(f'CREATE PUBLICATION "{names.publication}" FOR TABLE a, b')

    async def describe() -> list[bool]:
        asked = await Source.connect(source.settings)
        with source.connect(autocommit=False) as running:
            before, meanwhile = new_xid(source), running.execute(XID).fetchone()
            assert meanwhile is not None
            catalog = RelationCatalog(asked, names)
            await catalog.describe(relation(source, "a"), before, LATER)
            source.execute("ALTER TABLE b ALTER v SET NOT NULL; ALTER TABLE c ADD PRIMARY KEY (id)")
            of = [("b", before), ("b", meanwhile[0]), ("b", new_xid(source)), ("c", before)]
            tables = [await catalog.describe(relation(source, name), xid, LATER) for name, xid in of]
        await asked.close()
        return [table.columns[-1].not_null for table in tables]

    assert asyncio.run(describe()) == [False, True, True, True]


def test_what_was_looked_up_together_does_for_a_while_only(source_database: Database) -> None:
    """A session may outlive two billion transactions: then the number of a new one looks like that of an old one."""
    source, names = source_database, GroupNames("catalog")
    source.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    source.execute(f'CREATE PUBLICATION "{names.publication}" FOR TABLE a')

    async def is_not_null(holds_for_s: float) -> bool:
        asked, before = await Source.connect(source.settings), new_xid(source)
        catalog = RelationCatalog(asked, names, holds_for_s=holds_for_s)
        await catalog.describe(relation(source, "a"), before, LATER)
        source.execute("ALTER TABLE a ALTER v SET NOT NULL")
        described = await catalog.describe(relation(source, "a"), before, LATER)
        source.execute("ALTER TABLE a ALTER v DROP NOT NULL")
        await asked.close()
        return described.columns[-1].not_null

    assert [asyncio.run(is_not_null(holds_for_s)) for holds_for_s in (3600.0, 0.0)] == [False, True]


XID = "SELECT (pg_current_xact_id()::text::numeric % 4294967296)::bigint"


def new_xid(source: Database) -> int:
    """As Begin has it, of a transaction that has committed."""
    [(xid,)] = source.execute(XID)
    return int(xid)


def test_what_was_altered_after_a_commit_does_not_count_for_it_and_does_from_the_look_on(source_database: Database) -> None:
    source, names = source_database, GroupNames("catalog")
    source.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    source.execute(f'CREATE PUBLICATION "{names.publication}" FOR TABLE a')

    async def numbers() -> list[object]:
        asked = await Source.connect(source.settings)
        catalog = RelationCatalog(asked, names)
        xid, commit = new_xid(source), await asked.current_lsn()
        message = relation(source, "a")
        source.execute("ALTER TABLE a RENAME v TO w; ALTER TABLE a ADD v text")
        described = await catalog.describe(message, xid, commit)
        counts_from = catalog.counts_from
        assert counts_from is not None
        assert not await catalog.complete(xid, LSN(counts_from - 1))
        [completed] = await catalog.complete(new_xid(source), counts_from)
        assert catalog.counts_from is None
        await asked.close()
        return [[column.number for column in table.columns] for table in (described, completed)]

    assert asyncio.run(numbers()) == [[1, 0], [1, 3]]


@pytest.mark.parametrize(
    ("snapshot", "xid", "is_shown"),
    [
        ("90:100:", 99, True),
        ("90:100:", 100, False),
        ("90:100:95,97", 95, False),
        ("90:100:95,97", 96, True),
        (f"{2**32 - 5}:{2**32 + 5}:{2**32 - 3}", 2**32 - 2, True),
        (f"{2**32 - 5}:{2**32 + 5}:{2**32 - 3}", 2**32 - 3, False),
        (f"{2**32 - 5}:{2**32 + 5}:", 4, True),
        (f"{2**32 - 5}:{2**32 + 5}:", 5, False),
        (f"{2**32 - 5}:{2**32 - 5}:", 3, False),
    ],
)
def test_a_snapshot_shows_what_had_ended_also_where_numbers_begin_again(snapshot: str, xid: int, is_shown: bool) -> None:
    assert _Snapshot.parse(snapshot).shows(xid) == is_shown


def relation(source: Database, name: str) -> Relation:
    """The Relation message of a table whose columns are ``id int`` and perhaps ``v text``."""
    rows = source.execute(
        "SELECT attname, atttypid::bigint FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", [name]
    )
    columns = tuple(RelationColumn(column == "id", column, type_oid, -1) for column, type_oid in rows)
    [(oid,)] = source.execute("SELECT %s::regclass::oid::bigint", [name])
    return Relation(oid, "public", name, ReplicaIdentity.DEFAULT, columns)
