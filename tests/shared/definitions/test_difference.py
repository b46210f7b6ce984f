"""What differs between two definitions of a table: by numbers, never by names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.definitions.difference import (
    ColumnAdded,
    ColumnDropped,
    ColumnPublished,
    ColumnRenamed,
    Difference,
    KeyAltered,
    NotNullAltered,
    PartitionAttached,
    PartitionDetached,
    TableRenamed,
    TypeAltered,
    differences,
)
from pgsluice.shared.wire.definition import DefinedColumn, TableDefinition
from pgsluice.shared.wire.table import ReplicaIdentity
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, partition, with_columns

ADDED = column(3, "added", missing="7")
SHORT = replace(NOTE, type_oid=1043, type_name="character varying(7)", typmod=11)
LONGER = replace(SHORT, type_name="character varying(9)", typmod=13)
UNKEYED = replace(ID, primary_key_position=None)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (TABLE, TABLE, []),
        (TABLE, replace(TABLE, filenode=7), []),
        (TABLE, replace(TABLE, name="u"), [TableRenamed(("public", "t"), ("public", "u"))]),
        (TABLE, replace(TABLE, schema="shop"), [TableRenamed(("public", "t"), ("shop", "t"))]),
        (TABLE, with_columns(ID, NOTE, ADDED), [ColumnAdded(ADDED)]),
        (TABLE, with_columns(ID), [ColumnDropped(NOTE)]),
        (TABLE, with_columns(ID, replace(NOTE, name="n")), [ColumnRenamed(NOTE, replace(NOTE, name="n"))]),
        (TABLE, with_columns(ID, column(3, "note")), [ColumnDropped(NOTE), ColumnAdded(column(3, "note"))]),
        (TABLE, with_columns(ID, SHORT), [TypeAltered(NOTE, SHORT)]),
        (with_columns(ID, SHORT), with_columns(ID, LONGER), [TypeAltered(SHORT, LONGER)]),
        (TABLE, with_columns(ID, replace(NOTE, not_null=True)), [NotNullAltered(replace(NOTE, not_null=True))]),
        (TABLE, with_columns(UNKEYED, NOTE, identity_columns=()), [KeyAltered((1,), (), (1,), ())]),
        (
            TABLE,
            replace(TABLE, identity_columns=(2,), replica_identity=ReplicaIdentity.INDEX),
            [KeyAltered((1,), (1,), (1,), (2,))],
        ),
        (TABLE, replace(TABLE, replica_identity=ReplicaIdentity.FULL, identity_columns=(1, 2)), []),
        (TABLE, with_columns(ID, NOTE, replace(ADDED, is_published=False)), []),
        (TABLE, with_columns(ID, replace(NOTE, is_published=False)), [ColumnDropped(NOTE)]),
        (with_columns(ID, replace(NOTE, is_published=False)), TABLE, [ColumnPublished(NOTE)]),
        (TABLE, replace(TABLE, partitions=(partition(1, "p"),)), [PartitionAttached(partition(1, "p"))]),
        (replace(TABLE, partitions=(partition(1, "p"),)), TABLE, [PartitionDetached(partition(1, "p"))]),
    ],
)
def test_a_difference_is_named(was: TableDefinition, now: TableDefinition, expected: list[Difference]) -> None:
    assert differences(was, now) == expected


def test_what_goes_comes_before_what_takes_its_name() -> None:
    renamed = replace(column(3, "other"), name="note")
    was, now = with_columns(ID, NOTE, column(3, "other")), with_columns(ID, renamed, column(4, "other"))
    assert differences(was, now) == [
        ColumnDropped(NOTE),
        ColumnRenamed(column(3, "other"), renamed),
        ColumnAdded(column(4, "other")),
    ]


tables = st.builds(
    lambda columns: with_columns(*(column(number, name) for number, name in columns.items())),
    st.dictionaries(st.integers(1, 6), st.sampled_from("abcdef"), max_size=5).filter(lambda c: len(set(c.values())) == len(c)),
)


@given(tables, tables)
def test_differences_applied_in_their_order_lead_from_one_to_the_other_unless_columns_change_names(
    was: TableDefinition, now: TableDefinition
) -> None:
    there = {each.number: each.name for each in was.columns}
    for difference in differences(was, now):
        match difference:
            case ColumnDropped(gone):
                del there[gone.number]
            case ColumnRenamed(earlier, later):
                assert there[earlier.number] == earlier.name
                there[later.number] = later.name
            case ColumnAdded(DefinedColumn(number=number, name=name)):
                assert name not in there.values()
                there[number] = name
    assert there == {each.number: each.name for each in now.columns}
