"""Messages about definitions: what they hold, and that nothing but a WireError comes of what is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.definition import (
    SIGNED_BYTES,
    DefinedColumn,
    DefinedPartition,
    DefinitionEvent,
    DefinitionMessage,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
    believed,
)
from pgsluice.shared.wire.table import ReplicaIdentity

TOKEN = "a token that nobody knows"

ID = DefinedColumn(1, "id", 20, "bigint", -1, True, 1, "a", "", None, False, True)
NOTE = DefinedColumn(3, "note", 25, "text", -1, False, None, "", "", "none", False, True, "i und-u-ks-level2")
TABLE = TableDefinition(
    16385,
    "shop",
    "orders",
    "p",
    0,
    ReplicaIdentity.DEFAULT,
    (1,),
    True,
    (ID, NOTE),
    (DefinedPartition(16390, 16385, "shop", "orders_1", 16391, "FOR VALUES IN (1)", "(id = 1)"),),
)
ENCODED_TABLE: dict[str, Any] = {
    "v": 1,
    "token": TOKEN,
    "kind": "table",
    "tag": "ALTER TABLE",
    "oid": 16385,
    "schema": "shop",
    "name": "orders",
    "relkind": "p",
    "filenode": 0,
    "replica_identity": "d",
    "identity_columns": [1],
    "published": True,
    "columns": [
        [1, "id", 20, "bigint", -1, True, 1, "a", "", None, False, True, ""],
        [3, "note", 25, "text", -1, False, None, "", "", "none", False, True, "i und-u-ks-level2"],
    ],
    "partitions": [[16390, 16385, "shop", "orders_1", 16391, "FOR VALUES IN (1)", "(id = 1)"]],
}
ENCODED_TYPE = {
    "v": 1,
    "token": TOKEN,
    "kind": "type",
    "tag": "ALTER TYPE",
    "oid": 16400,
    "schema": "shop",
    "name": "mood",
    "type_kind": "e",
    "base": "",
    "labels": [[16401, "sad"], [16403, "happy"]],
}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(0, 2**32 - 1)
COLUMNS = st.lists(
    st.builds(
        DefinedColumn,
        st.integers(1, 1600),
        TEXT,
        NUMBER,
        TEXT,
        st.integers(-1, 2**31 - 1),
        st.booleans(),
        st.none() | st.integers(1, 32),
        TEXT,
        TEXT,
        st.none() | TEXT,
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda column: column.number,
).map(tuple)
PARTITIONS = st.lists(st.builds(DefinedPartition, NUMBER, NUMBER, TEXT, TEXT, NUMBER, TEXT, st.none() | TEXT), max_size=2).map(
    tuple
)
TABLES = COLUMNS.flatmap(
    lambda columns: st.builds(
        TableDefinition,
        NUMBER,
        TEXT,
        TEXT,
        TEXT,
        NUMBER,
        st.sampled_from(ReplicaIdentity),
        st.just(tuple(column.number for column in columns[::2])),
        st.booleans(),
        st.just(columns),
        PARTITIONS,
    )
)
LABELS = st.lists(st.builds(EnumLabel, NUMBER, TEXT), max_size=3).map(tuple)
EVENTS: st.SearchStrategy[DefinitionEvent] = st.one_of(
    st.builds(TableDefined, TEXT, TABLES),
    st.builds(TablePublished, TEXT, TABLES),
    st.builds(TableUnpublished, TEXT, NUMBER, TEXT, TEXT),
    st.builds(TableGone, TEXT, NUMBER, TEXT, TEXT),
    st.builds(TableRewritten, TEXT, NUMBER, TEXT, TEXT, st.integers(0, 15)),
    st.builds(TypeDefined, TEXT, NUMBER, TEXT, TEXT, TEXT, TEXT, LABELS),
    st.builds(DefinitionUnknown, TEXT, TEXT),
)


def test_a_table_is_written_as_the_format_says() -> None:
    message = DefinitionMessage(TOKEN, TableDefined("ALTER TABLE", TABLE))
    assert orjson.loads(message.encode()) == ENCODED_TABLE
    assert DefinitionMessage.decode(orjson.dumps(ENCODED_TABLE)) == message


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"kind": "unpublished", "oid": 7, "schema": "s", "name": "t"}, TableUnpublished("A", 7, "s", "t")),
        ({"kind": "gone", "oid": 7, "schema": "s", "name": "t"}, TableGone("A", 7, "s", "t")),
        ({"kind": "rewrite", "oid": 7, "schema": "s", "name": "t", "reason": 4}, TableRewritten("A", 7, "s", "t", 4)),
        ({"kind": "unknown", "sqlstate": "42P01"}, DefinitionUnknown("A", "42P01")),
    ],
)
def test_other_events_are_written_as_the_format_says(fields: dict[str, Any], event: DefinitionEvent) -> None:
    message = DefinitionMessage(TOKEN, event)
    assert orjson.loads(message.encode()) == {"v": 1, "token": TOKEN, "tag": "A"} | fields
    assert DefinitionMessage.decode(message.encode()) == message


def test_a_label_that_was_renamed_is_told_from_one_that_was_added() -> None:
    renamed = ENCODED_TYPE | {"labels": [[16401, "sad"], [16403, "glad"], [16405, "happy"]]}
    before, after = (DefinitionMessage.decode(orjson.dumps(fields)).event for fields in (ENCODED_TYPE, renamed))
    assert isinstance(before, TypeDefined)
    assert isinstance(after, TypeDefined)
    labels = {label.oid: label.label for label in before.labels}
    assert [(labels.get(label.oid), label.label) for label in after.labels] == [
        ("sad", "sad"),
        ("happy", "glad"),
        (None, "happy"),
    ]


@given(TEXT, EVENTS)
def test_every_event_survives_being_written_and_read(token: str, event: DefinitionEvent) -> None:
    message = DefinitionMessage(token, event)
    assert DefinitionMessage.decode(message.encode()) == message


def test_what_a_later_version_adds_is_passed_over() -> None:
    longer = [[*column, "more"] for column in ENCODED_TABLE["columns"]]
    fields = ENCODED_TABLE | {"columns": longer, "comment": "a table"}
    assert DefinitionMessage.decode(orjson.dumps(fields)).event == TableDefined("ALTER TABLE", TABLE)


def test_what_an_earlier_version_installed_tells_no_collations() -> None:
    shorter = [column[:-1] for column in ENCODED_TABLE["columns"]]
    event = DefinitionMessage.decode(orjson.dumps(ENCODED_TABLE | {"columns": shorter})).event
    assert isinstance(event, TableDefined)
    assert [column.collation for column in event.table.columns] == ["", ""]


def test_the_token_is_compared_and_never_shown() -> None:
    message = DefinitionMessage(TOKEN, DefinitionUnknown("ALTER TABLE", "42P01"))
    assert message.is_signed_with(TOKEN)
    assert not message.is_signed_with(TOKEN + "x")
    assert not DefinitionMessage("größer", message.event).is_signed_with(TOKEN)
    assert not DefinitionMessage("", message.event).is_signed_with("")
    assert TOKEN not in repr(message)


def test_only_what_is_signed_is_believed_and_what_was_cut_is_known_to_be_something() -> None:
    event = DefinitionUnknown("ALTER TABLE", "x" * SIGNED_BYTES)
    content = DefinitionMessage(TOKEN, event).encode()
    assert believed(content, TOKEN) == event
    assert believed(content[:SIGNED_BYTES], TOKEN) == DefinitionUnknown("ALTER TABLE", "54000")
    assert believed(content.replace(b'"v":1', b'"v":2'), TOKEN) == DefinitionUnknown("ALTER TABLE", "0A000")
    for other in ("", "x", TOKEN + "x", TOKEN[:-1]):
        assert believed(content, other) is None
        assert believed(DefinitionMessage(other, event).encode(), TOKEN) is None
    assert believed(b" " * SIGNED_BYTES + content, TOKEN) is None
    assert believed(b"", "") is None


def changed(key: str, value: object) -> bytes:
    return orjson.dumps(ENCODED_TABLE | {key: value})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b"[1]",
        b'"v"',
        b"\xff",
        changed("v", 2),
        changed("v", True),
        changed("kind", "index"),
        changed("kind", ["table"]),
        changed("token", None),
        changed("oid", "16385"),
        changed("oid", 1.5),
        changed("oid", True),
        changed("published", 1),
        changed("replica_identity", "x"),
        changed("replica_identity", []),
        changed("identity_columns", [2]),
        changed("identity_columns", [[]]),
        changed("columns", None),
        changed("columns", [[1, "id"]]),
        changed("columns", ENCODED_TABLE["columns"] * 2),
        changed("columns", [None]),
        changed("partitions", [[1, 2, "s", "t", 3, "DEFAULT", 4]]),
        orjson.dumps(ENCODED_TYPE | {"labels": [["sad", 1]]}),
    ],
)
def test_what_is_not_of_the_form_is_refused(content: bytes) -> None:
    with pytest.raises(WireError, match="about a definition is malformed"):
        DefinitionMessage.decode(content)


@pytest.mark.parametrize("key", [*ENCODED_TABLE, *ENCODED_TYPE])
def test_a_key_that_is_missing_is_refused(key: str) -> None:
    for fields in (ENCODED_TABLE, ENCODED_TYPE):
        without: dict[str, object] = {name: value for name, value in fields.items() if name != key}
        if without != fields:
            with pytest.raises(WireError):
                DefinitionMessage.decode(orjson.dumps(without))


@pytest.mark.parametrize("fields", [ENCODED_TABLE, ENCODED_TYPE], ids=["table", "type"])
def test_every_truncated_prefix_is_refused(fields: dict[str, object]) -> None:
    content = orjson.dumps(fields)
    for size in range(len(content)):
        with pytest.raises(WireError):
            DefinitionMessage.decode(content[:size])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=14) | st.dictionaries(st.sampled_from([*ENCODED_TABLE, *ENCODED_TYPE]), inner),
    max_leaves=20,
)


def with_one_replaced(fields: dict[str, Any], key: str, value: object) -> bytes:
    return orjson.dumps(fields | {key: value})


@given(
    st.binary(max_size=100)
    | JSON.map(orjson.dumps)
    | st.builds(
        with_one_replaced, st.sampled_from([ENCODED_TABLE, ENCODED_TYPE]), st.sampled_from([*ENCODED_TABLE, *ENCODED_TYPE]), JSON
    )
)
def test_whatever_comes_only_wire_errors_are_raised(content: bytes) -> None:
    with contextlib.suppress(WireError):
        message = DefinitionMessage.decode(content)
        assert DefinitionMessage.decode(message.encode()) == message


def test_the_error_shows_nothing_of_the_content() -> None:
    decode: Callable[[bytes], DefinitionMessage] = DefinitionMessage.decode
    with pytest.raises(WireError) as refusal:
        decode(changed("columns", [["secret default"]]))
    assert "secret" not in str(refusal.value)
