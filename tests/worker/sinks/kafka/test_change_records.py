"""Records in the format pgsluice: what tasks encode, against golden files, and what reading them gives back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.errors import WireError
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.kafka_record import decode_record
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.batch import write_copied_partition, write_partition
from pgsluice.testing.changes_builder import TruncateChange, copied, delete, insert, message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.kafka.change_records import ChangeRecordWriter
from pgsluice.worker.sinks.kafka.outgoing_records import OutgoingRecord, decode_records
from pgsluice.worker.sinks.kafka.record_keys import RecordKeys
from pgsluice.worker.sinks.kafka.topic_pattern import KeyPattern, TopicPattern
from pgsluice.worker.sinks.kafka.writer import RecordWriter
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding

GOLDEN = Path(__file__).parent / "golden" / "pgsluice.json"
PLAIN = table("shop.orders", "id bigint", "note text", "doc text")
FULL = table("shop.full", "id bigint", "doc text", identity=ReplicaIdentity.FULL)
KEYLESS = table("shop.log", "line text", key=())

CHANGES: dict[str, Any] = {
    "insert": insert(PLAIN, b"1", b"first", None),
    "update with an unsent value": update(PLAIN, b"1", b"second", UNCHANGED),
    "delete": delete(PLAIN, b"1", None, None),
    "key change": update(PLAIN, b"2", b"n", b"d", old=(b"1", None, None)),
    "key change of a whole old row": update(FULL, b"2", UNCHANGED, old=(b"1", b"large")),
    "truncate": TruncateChange((PLAIN,)),
    "row without a key": insert(KEYLESS, b"a line"),
}


def writer(key: str = "{key}", **told: Any) -> ChangeRecordWriter:
    form = LineEncoding()
    settings: dict[str, Any] = {"most_bytes": 1_000_000, "tombstones": False, "headers": True}
    return ChangeRecordWriter(
        RecordWriter(form, TopicPattern.parse(""), RecordKeys(KeyPattern.parse(key), form), **settings | told)
    )


def records(*changes: Any, **told: Any) -> list[OutgoingRecord]:
    receipts = write_partition(writer(**told), [message(1, *changes)])
    return [record for receipt in receipts for record in decode_records(receipt.body)]


def shown(record: OutgoingRecord) -> dict[str, Any]:
    """For people: frames as hexadecimal digits, the descriptor as JSON."""
    group, ordinal, key, value = record
    told = {"topic": group.topic, "ordinal": ordinal, "key": None if key is None else key.decode()}
    headers = {name: content.decode() for name, content in group.headers}
    if value is None:
        return told | {"headers": headers, "value": None}
    read = decode_record(value)
    frames = {"relation": read.relation.hex(), "begin": list(read.begin), "change": read.frame.hex()}
    return told | {"headers": headers, "barrier": group.is_barrier, "descriptor": json.loads(read.descriptor), "frames": frames}


def test_records_are_as_the_golden_file_has_them() -> None:
    made = {name: [shown(record) for record in records(change)] for name, change in CHANGES.items()}
    assert made == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", CHANGES)
def test_a_record_decodes_alone_as_any_message_body_does(name: str) -> None:
    for _, _, _, value in records(CHANGES[name]):
        assert value is not None
        decoded = decode_changes(value, first_sequence=1, sequence=1, first_ordinal=1)
        assert decoded.change_count == 1
        assert not decoded.transactions[0].commits


def operations(*changes: Any, **told: Any) -> list[tuple[str, str]]:
    return [(group.headers[0][1].decode(), (key or b"").decode()) for group, _, key, _ in records(*changes, **told)]


def test_a_row_that_gets_another_key_leaves_the_old_one_s_partition() -> None:
    moved = [("delete", '{"id":1}'), ("insert", '{"id":2}')]
    assert operations(CHANGES["key change"]) == moved
    assert operations(CHANGES["key change"], tombstones=True) == [moved[0], moved[0], moved[1]]
    assert operations(CHANGES["key change"], key="{table}") == [("update", "orders")]


def test_a_value_that_was_not_sent_moves_with_its_row_when_the_old_row_has_it() -> None:
    [_, (_, _, _, value)] = records(CHANGES["key change of a whole old row"])
    assert value is not None
    assert b"large" in decode_record(value).frame


def test_a_moved_row_that_is_not_whole_is_rejected() -> None:
    with pytest.raises(RejectedChanges) as refused:
        records(update(PLAIN, b"2", b"n", UNCHANGED, old=(b"1", None, None)))
    assert [each.position.ordinal for each in refused.value.rejections] == [1]
    assert "REPLICA IDENTITY FULL" in refused.value.rejections[0].reason


def test_a_truncation_is_a_barrier_unless_the_table_is_in_one_partition() -> None:
    assert [(group.is_barrier, key) for group, _, key, _ in records(CHANGES["truncate"])] == [(True, None)]
    assert [(group.is_barrier, key) for group, _, key, _ in records(CHANGES["truncate"], key="{table}")] == [(False, b"orders")]


def test_copied_rows_are_inserts_of_no_transaction() -> None:
    [receipt] = write_copied_partition(writer(), [copied(3, PLAIN, (b"1", b"x", None), (b"2", None, b"y"))])
    told = list(decode_records(receipt.body))
    assert [key for _, _, key, _ in told] == [b'{"id":1}', b'{"id":2}']
    assert [decode_record(value or b"").begin.xid for _, _, _, value in told] == [0, 0]
    assert told[0][0].headers[0] == ("pgsluice-operation", b"read")


@pytest.mark.parametrize("value", [b"", b'{"operation":"insert"}', b"\x00\x00\x00\x02{}"])
def test_something_else_is_no_record(value: bytes) -> None:
    with pytest.raises(WireError, match="not hold a change in the format pgsluice"):
        decode_record(value)


def test_a_record_that_is_cut_off_is_none() -> None:
    [(_, _, _, value)] = records(CHANGES["insert"])
    assert value is not None
    for size in range(len(value)):
        with pytest.raises(WireError):
            decode_record(value[:size])
