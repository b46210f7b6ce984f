"""``decode_message`` on recorded bytes, on every mutilation of them, and on what hypothesis makes."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput import PgoutputMessage, decode_message, encode_message
from pgsluice.shared.pgoutput.decoder import begin_lsn, commit_lsns
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
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from tests.shared.pgoutput.corpus import Recording, recordings
from tests.shared.pgoutput.strategies import messages

each_recording = pytest.mark.parametrize("recording", recordings(), ids=str)

LSN_1 = LSN(0x16B374D848)

SPELLED_OUT: dict[str, tuple[str, PgoutputMessage]] = {
    "begin": ("42 00000016B374D848 000303CBE6D0A801 00000309", Begin(LSN_1, 848599215810561, 777)),
    "begin of a transaction replayed from before 2000": ("42 00000016B374D848 FFFFFFFFFFFFFFFF 00000309", Begin(LSN_1, -1, 777)),
    "commit": (
        "43 00 00000016B374D848 00000016B374D878 0000000000000001",
        Commit(0, LSN_1, LSN(0x16B374D878), 1),
    ),
    "origin": ("4F 00000016B374D848 C3A9 00", Origin(LSN_1, "é")),
    "logical message in a transaction": (
        "4D 01 00000016B374D848 70 00 00000002 00FF",
        LogicalMessage(True, LSN_1, "p", b"\0\xff"),
    ),
    "logical message outside": ("4D 00 00000016B374D848 00 00000000", LogicalMessage(False, LSN_1, "", b"")),
    "relation": (
        "52 00004001 7300 7400 64 0002  01 696400 00000017 FFFFFFFF  00 6E00 00000413 0000000E",
        Relation(
            16385, "s", "t", ReplicaIdentity.DEFAULT, (RelationColumn(True, "id", 23, -1), RelationColumn(False, "n", 1043, 14))
        ),
    ),
    "relation in pg_catalog, without columns": (
        "52 00000001 00 7400 6E 0000",
        Relation(1, "pg_catalog", "t", ReplicaIdentity.NOTHING, ()),
    ),
    "type": ("59 00004002 7300 6D6F6F6400", Type(16386, "s", "mood")),
    "type in pg_catalog": ("59 00004002 00 6E00", Type(16386, "pg_catalog", "n")),
    "insert": ("49 00004001 4E 0003 74 00000001 31 6E 74 00000000", Insert(16385, (b"1", None, b""))),
    "insert of no columns": ("49 00004001 4E 0000", Insert(16385, ())),
    "update": ("55 00004001 4E 0002 74 00000001 31 75", Update(16385, NO_OLD_ROW, (), (b"1", UNCHANGED))),
    "update with old key": (
        "55 00004001 4B 0001 74 00000001 31 4E 0001 74 00000001 32",
        Update(16385, OLD_KEY, (b"1",), (b"2",)),
    ),
    "update with old row": ("55 00004001 4F 0001 6E 4E 0001 74 00000001 32", Update(16385, OLD_ROW, (None,), (b"2",))),
    "delete by key": ("44 00004001 4B 0002 74 00000001 31 6E", Delete(16385, OLD_KEY, (b"1", None))),
    "delete by row": ("44 00004001 4F 0001 74 00000001 31", Delete(16385, OLD_ROW, (b"1",))),
    "truncate": ("54 00000001 00 00004001", Truncate(False, False, (16385,))),
    "truncate of two, cascade": ("54 00000002 01 00004001 00004002", Truncate(True, False, (16385, 16386))),
    "truncate, restart identity": ("54 00000001 02 00004001", Truncate(False, True, (16385,))),
}

REFUSED = {
    "nothing": ("", "is empty"),
    "a begin with bytes behind it": ("42 00000016B374D848 0000000000000001 00000309 00", "(22 bytes) is not 21 bytes long"),
    "an unknown kind": ("5A 00000001", "unknown kind 0x5a"),
    "a stream start of protocol version 2": ("53 00000001 01", "unknown kind 0x53"),
    "a binary value": ("49 00004001 4E 0001 62 00000001 31", "binary format, which was not asked for"),
    "a value of unknown kind": ("49 00004001 4E 0001 78", "unknown kind 0x78"),
    "a value longer than its message": ("49 00004001 4E 0001 74 FFFFFFFF 31", "(14 bytes) ends early"),
    "an insert without a new row": ("49 00004001 4B 0000", "has no new row"),
    "an update with an old row only": ("55 00004001 4F 0000 4F 0000", "has no new row"),
    "a delete without an old row": ("44 00004001 4E 0000", "has no old row"),
    "an unknown replica identity": ("52 00000001 00 7400 7A 0000", "unknown replica identity"),
    "a name that is not UTF-8": ("59 00004002 7300 FF00", "not UTF-8"),
    "a name without an end": ("59 00004002 73", "ends inside a string"),
    "more relations than the message holds": ("54 FFFFFFFF 00 00004001", "ends early"),
}


@pytest.mark.parametrize(("encoded", "message"), SPELLED_OUT.values(), ids=SPELLED_OUT.keys())
def test_each_field_is_where_the_manual_says(encoded: str, message: PgoutputMessage) -> None:
    decoded = decode_message(bytes.fromhex(encoded))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize(("encoded", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_protocol_does_not_allow_is_refused_with_its_reason(encoded: str, reason: str) -> None:
    with pytest.raises(WireError, match=re.escape(reason)):
        decode_message(bytes.fromhex(encoded))


def test_an_error_does_not_hold_a_row_value() -> None:
    with pytest.raises(WireError) as caught:
        decode_message(bytes.fromhex("49 00004001 4E 0002 74 00000006") + b"secret" + b"x")
    assert "secret" not in repr(caught.value)


def test_the_corpus_holds_every_message_and_every_form_of_a_row() -> None:
    decoded = [decode_message(message) for recording in recordings() for message in recording.messages]
    assert {type(message) for message in decoded} == set(PgoutputMessage.__args__)
    assert {message.old_kind for message in decoded if isinstance(message, Update)} == {NO_OLD_ROW, OLD_KEY, OLD_ROW}
    assert {message.old_kind for message in decoded if isinstance(message, Delete)} == {OLD_KEY, OLD_ROW}
    assert {message.replica_identity for message in decoded if isinstance(message, Relation)} == set(ReplicaIdentity)
    assert {(m.cascade, m.restart_identity) for m in decoded if isinstance(m, Truncate)} > {
        (False, True),
        (True, False),
        (True, True),
    }
    assert {message.transactional for message in decoded if isinstance(message, LogicalMessage)} == {False, True}
    assert any(UNCHANGED in message.new for message in decoded if isinstance(message, Update))


@each_recording
def test_every_truncated_prefix_of_every_recorded_message_raises(recording: Recording) -> None:
    for message in set(recording.messages):
        for size in range(len(message)):
            with pytest.raises(WireError):
                decode_message(message[:size])


@each_recording
def test_every_recorded_message_with_a_byte_behind_it_raises(recording: Recording) -> None:
    for message in recording.messages:
        for garbage in (b"\0", b"n", b"\xff"):
            with pytest.raises(WireError):
                decode_message(message + garbage)


@given(st.data())
def test_a_recorded_message_with_changed_bytes_decodes_or_raises_a_wire_error(data: st.DataObject) -> None:
    message = bytearray(data.draw(st.sampled_from([m for recording in recordings() for m in recording.messages])))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(message))


@given(st.binary(max_size=80), st.sampled_from(list(b"BCOMRYIUDT")))
def test_any_bytes_decode_or_raise_a_wire_error(rest: bytes, kind: int) -> None:
    decode_or_refuse(bytes([kind]) + rest)


def decode_or_refuse(payload: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_message(payload)


@given(messages)
def test_every_truncated_prefix_of_any_message_raises(message: PgoutputMessage) -> None:
    encoded = encode_message(message)
    for size in range(len(encoded)):
        with pytest.raises(WireError):
            decode_message(encoded[:size])


def test_the_lsns_of_a_begin_and_a_commit() -> None:
    assert begin_lsn(encode_message(Begin(LSN(7), 8, 9))) == 7
    assert commit_lsns(encode_message(Commit(0, LSN(7), LSN(8), 9))) == (7, 8)


@pytest.mark.parametrize("payload", [b"B", b"B" + bytes(21), b"B" + bytes(19)])
def test_a_begin_of_another_length_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="bytes long"):
        begin_lsn(payload)


@pytest.mark.parametrize("payload", [b"C", b"C" + bytes(24), b"C" + bytes(26)])
def test_a_commit_of_another_length_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="bytes long"):
        commit_lsns(payload)
