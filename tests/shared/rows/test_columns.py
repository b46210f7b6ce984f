"""``decode_changes``: agrees with ``decode_message`` on everything, groups rows into parts, and refuses what is malformed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput import PgoutputMessage, decode_message, encode_messages
from pgsluice.shared.pgoutput.messages import (
    NO_OLD_ROW,
    OLD_KEY,
    OLD_ROW,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, MessageChanges, TableChanges, Transaction, Truncation
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.rows.parts import FEWEST_PLAIN_ROWS
from pgsluice.shared.wire.message import Descriptor, encode_body
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from tests.shared.pgoutput.bodies import Body, body_of, changes_of_columns, changes_of_messages, cut_bodies, table_of
from tests.shared.pgoutput.corpus import Recording, recordings
from tests.shared.pgoutput.strategies import streams

each_recording = pytest.mark.parametrize("recording", recordings(), ids=str)

ID = RelationColumn(True, "id", 23, -1)
NOTE = RelationColumn(False, "note", 25, -1)
A = Relation(1, "public", "a", ReplicaIdentity.DEFAULT, (ID, NOTE))
B = Relation(2, "public", "b", ReplicaIdentity.FULL, (RelationColumn(True, "id", 23, -1),))
BEGIN = Begin(LSN(100), 5, 7)
COMMIT = Commit(0, LSN(100), LSN(108), 5)


def decode(body: bytes, first_ordinal: int = 1) -> MessageChanges:
    return decode_changes(body, first_sequence=4, sequence=6, first_ordinal=first_ordinal)


def decode_messages(*messages: PgoutputMessage, first_ordinal: int = 1) -> MessageChanges:
    return decode(body_of(messages), first_ordinal)


def assert_both_decoders_agree(messages: Sequence[PgoutputMessage], bodies: Sequence[Body]) -> None:
    found = [change for body in bodies for change in changes_of_columns(decode(body.data, body.first_ordinal))]
    assert found == changes_of_messages(messages)


@each_recording
@pytest.mark.parametrize("changes_per_body", [1, 3, 1000])
def test_recorded_changes_are_the_same_as_decoded_one_by_one(recording: Recording, changes_per_body: int) -> None:
    messages = [decode_message(message) for message in recording.messages]
    assert_both_decoders_agree(messages, cut_bodies(messages, changes_per_body))


@given(streams(), st.integers(1, 12))
def test_any_changes_are_the_same_as_decoded_one_by_one(messages: list[PgoutputMessage], changes_per_body: int) -> None:
    assert_both_decoders_agree(messages, cut_bodies(messages, changes_per_body))


def test_rows_come_as_one_list_per_column() -> None:
    changes = decode_messages(A, BEGIN, Insert(1, (b"1", None)), Insert(1, (b"2", b"")), COMMIT)
    (part,) = changes.parts
    assert isinstance(part, TableChanges)
    assert part.table == table_of(A)
    assert part.new == [[b"1", b"2"], [None, b""]]
    assert bytes(part.operations) == bytes([INSERT, INSERT])
    assert part.change_indexes == [0, 1]
    assert (changes.first_sequence, changes.sequence, changes.change_count) == (4, 6, 2)


def test_a_part_without_old_images_has_no_old_columns() -> None:
    (part,) = decode_messages(A, BEGIN, Insert(1, (b"1", None)), Update(1, NO_OLD_ROW, (), (b"1", UNCHANGED)), COMMIT).parts
    assert isinstance(part, TableChanges)
    assert (part.old, part.old_kinds) == (None, None)
    assert part.new[1] == [None, UNCHANGED]


def test_old_images_are_aligned_with_the_rows_that_have_none() -> None:
    (part,) = decode_messages(
        A,
        BEGIN,
        Insert(1, (b"1", b"a")),
        Insert(1, (b"2", b"b")),
        Update(1, OLD_KEY, (b"1", None), (b"3", b"a")),
        Update(1, NO_OLD_ROW, (), (b"3", b"c")),
        Delete(1, OLD_ROW, (b"2", b"b")),
        Insert(1, (b"4", b"d")),
        COMMIT,
    ).parts
    assert isinstance(part, TableChanges)
    assert bytes(part.operations) == bytes([INSERT, INSERT, UPDATE, UPDATE, DELETE, INSERT])
    assert part.new == [[b"1", b"2", b"3", b"3", None, b"4"], [b"a", b"b", b"a", b"c", None, b"d"]]
    assert part.old == [[None, None, b"1", None, b"2", None], [None, None, None, None, b"b", None]]
    assert list(part.old_kinds or ()) == [NO_OLD_ROW, NO_OLD_ROW, OLD_KEY, NO_OLD_ROW, OLD_ROW, NO_OLD_ROW]


def test_rows_of_each_table_are_one_part_however_they_alternate() -> None:
    first, second = decode_messages(
        A, B, BEGIN, Insert(2, (b"1",)), Insert(1, (b"2", None)), Insert(2, (b"3",)), Insert(1, (b"4", None)), COMMIT
    ).parts
    assert isinstance(first, TableChanges)
    assert isinstance(second, TableChanges)
    assert (first.table.name, first.new, first.change_indexes) == ("b", [[b"1", b"3"]], [0, 2])
    assert (second.table.name, second.new[0], second.change_indexes) == ("a", [b"2", b"4"], [1, 3])


def test_a_truncate_is_a_barrier_between_the_parts_of_all_tables() -> None:
    before_a, before_b, truncation, after_b = decode_messages(
        A,
        B,
        BEGIN,
        Insert(1, (b"1", None)),
        Insert(2, (b"1",)),
        Truncate(True, False, (1,)),
        Insert(2, (b"2",)),
        COMMIT,
    ).parts
    assert isinstance(before_a, TableChanges)
    assert isinstance(before_b, TableChanges)
    assert isinstance(after_b, TableChanges)
    assert (before_a.table.name, before_b.table.name) == ("a", "b")
    assert truncation == Truncation((table_of(A),), change_index=2, cascade=True, restart_identity=False)
    assert (after_b.new, after_b.change_indexes) == ([[b"2"]], [3])


def test_a_table_without_columns_keeps_its_rows() -> None:
    (part,) = decode_messages(
        Relation(3, "s", "t", ReplicaIdentity.DEFAULT, ()), BEGIN, Insert(3, ()), Insert(3, ()), COMMIT
    ).parts
    assert isinstance(part, TableChanges)
    assert (len(part), part.new, part.change_indexes) == (2, [], [0, 1])


def test_transactions_tile_the_changes_of_a_message() -> None:
    second = Begin(LSN(200), 6, 8)
    changes = decode_messages(
        A, B, BEGIN, Insert(1, (b"1", None)), Truncate(False, False, (2,)), COMMIT, second, Insert(2, (b"1",)), Insert(2, (b"2",))
    )
    assert changes.transactions == [
        Transaction(100, 7, 5, first_change=0, end_change=2, first_ordinal=1, begins=True, commits=True),
        Transaction(200, 8, 6, first_change=2, end_change=4, first_ordinal=1, begins=True, commits=False),
    ]
    assert changes.transactions[1].position(3) == Position(LSN(200), 2)


def test_a_message_that_continues_a_transaction_counts_on() -> None:
    changes = decode_messages(
        A, BEGIN, Insert(1, (b"1", None)), COMMIT, Begin(LSN(200), 6, 8), Insert(1, (b"2", None)), first_ordinal=5
    )
    assert changes.transactions == [
        Transaction(100, 7, 5, first_change=0, end_change=1, first_ordinal=5, begins=False, commits=True),
        Transaction(200, 8, 6, first_change=1, end_change=2, first_ordinal=1, begins=True, commits=False),
    ]


def test_messages_that_are_not_changes_take_no_ordinal() -> None:
    changes = decode_messages(
        Type(9, "public", "mood"),
        A,
        LogicalMessage(False, LSN(1), "p", b"outside"),
        BEGIN,
        Origin(LSN(1), "elsewhere"),
        Insert(1, (b"1", None)),
        LogicalMessage(True, LSN(1), "p", b"inside"),
        A,
        Insert(1, (b"2", None)),
        COMMIT,
    )
    assert changes.change_count == 2
    assert [transaction.end_change for transaction in changes.transactions] == [2]
    assert len(changes.parts) == 1


def test_the_table_comes_from_the_descriptor() -> None:
    (part,) = decode_messages(A, BEGIN, Insert(1, (b"1", None)), COMMIT).parts
    assert isinstance(part, TableChanges)
    assert part.table.columns[0].primary_key_position == 1


@pytest.mark.parametrize(
    "described",
    [
        A._replace(columns=(ID,)),
        A._replace(columns=(ID, NOTE._replace(name="other"))),
        A._replace(columns=(ID, NOTE._replace(type_oid=23))),
        A._replace(name="renamed"),
        A._replace(replica_identity=ReplicaIdentity.FULL),
        A._replace(oid=17),
    ],
)
def test_a_descriptor_that_disagrees_with_the_relation_message_is_refused(described: Relation) -> None:
    descriptor = Descriptor((table_of(described),)).encode()
    with pytest.raises(WireError, match=re.escape("does not agree with its Relation message of public.a")):
        decode(encode_body(descriptor, encode_messages([A, BEGIN, COMMIT])))


REFUSED: dict[str, tuple[list[PgoutputMessage], str]] = {
    "a row outside a transaction": ([A, Insert(1, (b"1", None))], "outside a transaction"),
    "a row behind a commit": ([A, BEGIN, COMMIT, Insert(1, (b"1", None))], "outside a transaction"),
    "a truncate outside a transaction": ([A, Truncate(False, False, (1,))], "outside a transaction"),
    "a begin inside a transaction": ([BEGIN, BEGIN], "begins inside another"),
    "a commit without a begin": ([COMMIT], "did not begin"),
    "a commit of another transaction": ([BEGIN, COMMIT._replace(commit_lsn=LSN(1))], "did not begin"),
    "a row before its relation": ([BEGIN, Insert(1, (b"1", None))], "before its Relation message"),
    "a truncate of a table before its relation": ([BEGIN, Truncate(False, False, (1,))], "before its Relation message"),
    "a row with too few columns": ([A, BEGIN, Insert(1, (b"1",))], "has 1 columns, its Relation message 2"),
    "an old row with too few columns": ([A, BEGIN, Delete(1, OLD_KEY, (b"1",))], "has 1 columns, its Relation message 2"),
    "a new row shorter than the old": ([A, BEGIN, Update(1, OLD_KEY, (b"1", None), (b"1",))], "do not fill its frame"),
}


@pytest.mark.parametrize(("messages", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_messages_out_of_place_are_refused(messages: list[PgoutputMessage], reason: str) -> None:
    with pytest.raises(WireError, match=re.escape(reason)):
        decode(body_of(messages))


def row_body(frame: bytes) -> bytes:
    """A body whose last frame is a row of table B."""
    return body_of([B, BEGIN]) + frame


HEAD = b"I" + pack(">I", 2) + b"N" + pack(">H", 1)

MALFORMED_ROWS = {
    "a value that ends before its frame": (pack(">I", 15) + HEAD + b"t\0\0\0\1xy", "do not fill its frame"),
    "a value that ends behind its frame": (pack(">I", 13) + HEAD + b"t\0\0\0\1x", "ends inside a frame"),
    "a value that ends behind the body": (pack(">I", 17) + HEAD + b"t\0\0\0\4x", "ends inside a frame"),
    "a value that ends far behind the body": (pack(">I", 14) + HEAD + b"t\xff\xff\xff\xffx", "do not fill its frame"),
    "a frame of nothing": (pack(">I", 0), "is empty"),
    "a length that is cut short": (b"\0\0\0", "ends inside a frame"),
    "a length without a frame": (b"\0\0\0\5", "ends inside a frame"),
    "a binary value": (pack(">I", 14) + HEAD + b"b\0\0\0\1x", "binary format"),
    "an insert of an old row": (pack(">I", 9) + HEAD.replace(b"N", b"O") + b"n", "image of unknown kind 0x4f"),
}


@pytest.mark.parametrize(("frame", "reason"), MALFORMED_ROWS.values(), ids=MALFORMED_ROWS.keys())
def test_a_malformed_row_is_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=re.escape(reason)):
        decode(row_body(frame))


@pytest.mark.parametrize("rows", [1, FEWEST_PLAIN_ROWS])
def test_a_frame_that_is_a_row_only_with_what_follows_it_is_refused(rows: int) -> None:
    """It ends inside of its shape, whose other bytes are the head of a logical message: 77 columns are the letter M."""
    columns = tuple(RelationColumn(False, f"c{number}", 23, -1) for number in range(77))
    wide = Relation(1 << 16, "public", "wide", ReplicaIdentity.DEFAULT, columns)
    body = body_of([wide, BEGIN, *[Insert(wide.oid, (None,) * 77)] * rows])
    shape = pack(">cIcH", b"I", wide.oid, b"N", 77)
    follows = int.from_bytes(shape[3:7], "big")
    message = pack(">cBQ2sI", b"M", 0, 1, b"x\0", follows - 16) + bytes(follows - 16)
    with pytest.raises(WireError, match="do not fill its frame of 3 bytes"):
        decode(body + pack(">I", 3) + shape[:7] + message)


def test_an_error_does_not_hold_a_row_value() -> None:
    with pytest.raises(WireError) as caught:
        decode(row_body(pack(">I", 20) + HEAD + b"t\0\0\0\6secret!"))
    assert "secret" not in repr(caught.value)


@each_recording
def test_a_body_that_ends_anywhere_from_its_first_change_on_raises_or_holds_whole_frames_only(recording: Recording) -> None:
    body = cut_bodies([decode_message(message) for message in recording.messages], 6)[0]
    whole = changes_of_columns(decode(body.data))
    borders = {border: body.data[border + 4 : border + 5] for border in frame_borders(body.data)}
    for size in range(min(border for border, kind in borders.items() if kind in {b"I", b"M"}), len(body.data)):
        if size in borders:
            assert whole[: (changes := decode(body.data[:size])).change_count] == changes_of_columns(changes)
        else:
            with pytest.raises(WireError):
                decode(body.data[:size])


def frame_borders(body: bytes) -> list[int]:
    borders = [0]
    while borders[-1] < len(body):
        borders.append(borders[-1] + 4 + int.from_bytes(body[borders[-1] : borders[-1] + 4], "big"))
    return borders


@given(st.data())
def test_a_body_with_changed_bytes_decodes_or_raises_a_wire_error(data: st.DataObject) -> None:
    messages = data.draw(streams())
    body = bytearray(body_of(messages))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode(bytes(body))
