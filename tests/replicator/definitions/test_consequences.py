"""What follows for a table from what its source told of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pgsluice.replicator.definitions.consequences import Consequences, attached_partitions, changes_names, copy_cause
from pgsluice.shared.wire.definition import (
    DefinedPartition,
    DefinitionEvent,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
)
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from tests.servers import Database
from tests.worker.definitions.definitions_of import TABLE, column

AT = LSN(7)


def told(event: DefinitionEvent, previous: TableDefinition | None = TABLE) -> PublishedDefinition:
    return PublishedDefinition(event, previous)


def partition(oid: int, filenode: int = 1) -> DefinedPartition:
    return DefinedPartition(oid, TABLE.oid, "public", f"p{oid}", filenode, "", None)


@pytest.mark.parametrize(("reason", "is_copied"), [(1, True), (2, True), (4, True), (6, True), (8, False), (12, True)])
def test_a_rewrite_that_gives_rows_other_values_asks_for_a_copy(reason: int, is_copied: bool) -> None:
    cause = copy_cause(told(TableRewritten("ALTER TABLE", 9, "public", "t", reason)), AT)
    assert (cause is not None) == is_copied
    if cause is not None:
        assert (cause[0], cause[1].lsn) == (9, AT)


def test_a_column_whose_older_values_are_known_asks_for_none() -> None:
    added = replace(TABLE, columns=(*TABLE.columns, column(99, "added", missing="7")))
    assert copy_cause(told(TableDefined("ALTER TABLE", added)), AT) is None
    assert copy_cause(told(TableDefined("ALTER TABLE", added), None), AT) is None


def test_a_column_whose_older_values_are_not_known_asks_for_a_copy() -> None:
    differs = replace(TABLE, columns=(*TABLE.columns, replace(column(99, "added"), missing_differs=True)))
    assert copy_cause(told(TableDefined("ALTER TABLE", differs)), AT) is not None
    hidden = replace(TABLE, columns=(*TABLE.columns, replace(column(99, "listed"), is_published=False)))
    listed = replace(TABLE, columns=(*TABLE.columns, column(99, "listed")))
    assert copy_cause(told(TablePublished("ALTER PUBLICATION", listed), hidden), AT) is not None
    assert copy_cause(told(TablePublished("ALTER PUBLICATION", listed), replace(hidden, is_published=False)), AT) is None


def test_partitions_that_may_hold_rows_are_those_that_were_attached() -> None:
    root = replace(TABLE, partitions=(partition(1),))
    grown = replace(root, partitions=(partition(1), partition(2), partition(3, filenode=0)))
    found = attached_partitions(told(TableDefined("ALTER TABLE", grown), root))
    assert [each.oid for each in found] == [2, 3]
    assert attached_partitions(told(TableDefined("CREATE TABLE", grown), root)) == []
    assert attached_partitions(told(TableDefined("ALTER TABLE", root), grown)) == []


async def test_a_partition_that_somebody_holds_is_taken_for_one_with_rows(source_database: Database) -> None:
    """The stream of all tables would wait for him else."""
    source_database.execute("CREATE TABLE held (id int); CREATE TABLE free (id int)")
    rows = source_database.execute("SELECT oid::bigint, relfilenode::bigint FROM pg_class WHERE relname IN ('held', 'free')")
    attached = TableDefined("ALTER TABLE", replace(TABLE, partitions=tuple(partition(*row) for row in rows)))
    consequences = Consequences(source_database.settings, None, frozenset, asyncio.Event())
    with source_database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        noted = await consequences.note(told(attached), Position(AT, 1))
    assert noted.empty == frozenset()
    noted = await consequences.note(told(attached), Position(AT, 1))
    assert noted.empty == {oid for oid, _ in rows}


def test_other_tables_may_have_to_be_followed_when_names_or_publication_change() -> None:
    renamed, unpublished = replace(TABLE, name="other"), replace(TABLE, is_published=False)
    for event in (
        TableDefined("ALTER TABLE", renamed),
        TableDefined("CREATE TABLE", unpublished),
        TableGone("DROP TABLE", 9, "public", "t"),
        TableUnpublished("ALTER PUBLICATION", 9, "public", "t"),
    ):
        assert changes_names(told(event)), event
    altered = replace(TABLE, columns=(*TABLE.columns, column(99, "added")))
    others: tuple[DefinitionEvent, ...] = (
        TableDefined("ALTER TABLE", altered),
        TableRewritten("", 9, "", "", 2),
        DefinitionUnknown("", "XX000"),
    )
    assert not any(changes_names(told(event)) for event in others)
