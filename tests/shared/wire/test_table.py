"""What identifies a row, and tables as the descriptor carries them."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.wire.table import UNCHANGED, Column, ReplicaIdentity, Table
from pgsluice.testing.changes_builder import table

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
OID = st.integers(0, 2**32 - 1)
COLUMNS = st.builds(
    Column, TEXT, OID, TEXT, st.integers(-1, 2**31 - 1), st.booleans(), st.none() | st.integers(1, 32), st.booleans(), TEXT, TEXT
)
ORIGIN = st.none() | st.tuples(TEXT, TEXT)
TABLES = st.builds(Table, OID, TEXT, TEXT, st.sampled_from(ReplicaIdentity), st.lists(COLUMNS).map(tuple), ORIGIN)


def key_names(described: Table) -> list[str]:
    return [described.columns[i].name for i in described.key]


@pytest.mark.parametrize("identity", [ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL, ReplicaIdentity.NOTHING])
def test_the_primary_key_identifies_a_row_in_key_order(identity: ReplicaIdentity) -> None:
    lines = table("lines", "line integer", "note text", "order_id bigint", key=("order_id", "line"), identity=identity)
    assert key_names(lines) == ["order_id", "line"]


def test_an_identity_index_identifies_a_row_although_there_is_a_primary_key() -> None:
    users = table("users", "id bigint", "mail text", identity=ReplicaIdentity.INDEX, identity_columns=("mail",))
    assert key_names(users) == ["mail"]


def test_a_row_goes_by_the_key_that_its_relation_message_flags_although_the_primary_key_is_another_by_now() -> None:
    """The old row of a change holds the columns that were flagged then, and no others."""
    keys = table("keys", "id bigint", "u text", "note text", key=("u",), identity_columns=("id",))
    assert key_names(keys) == ["id"]
    grown = table("keys", "id bigint", "part text", key=("part", "id"), identity_columns=("id",))
    assert key_names(grown) == ["id"]


@pytest.mark.parametrize("identity", [ReplicaIdentity.FULL, ReplicaIdentity.NOTHING])
def test_nothing_identifies_a_row_of_a_table_without_primary_key(identity: ReplicaIdentity) -> None:
    assert table("log", "line text", key=(), identity=identity).key == ()


def test_the_relation_message_is_believed_where_the_catalog_knows_no_primary_key() -> None:
    """The descriptor is made after the change: the primary key may have been dropped meanwhile."""
    assert key_names(table("t", "id bigint", "note text", key=(), identity_columns=("id",))) == ["id"]


@given(TABLES)
def test_every_table_survives_its_descriptor(described: Table) -> None:
    assert Table.decode(orjson.loads(orjson.dumps(described.encode()))) == described


def test_a_table_is_named_with_its_schema() -> None:
    assert table("shop.orders").qualified_name == "shop.orders"


def test_null_absent_and_the_text_unchanged_are_not_unchanged() -> None:
    for other in (None, b"unchanged", "unchanged"):
        other_value: object = other
        assert other_value != UNCHANGED
