"""What tasks encode, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import write_partition
from pgsluice.testing.changes_builder import delete, insert, message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.kafka.outgoing_records import OutgoingRecord, decode_records
from pgsluice.worker.sinks.kafka.record_keys import RecordKeys
from pgsluice.worker.sinks.kafka.topic_pattern import KeyPattern, TopicPattern
from pgsluice.worker.sinks.kafka.writer import RecordWriter
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.lines.presentation import ColumnCase

PAIRS = table("public.pairs", "b text", "a bigint", "note text", key=("a", "b"))
FULL = table("public.full", "id bigint", "note text", identity=ReplicaIdentity.FULL)


def records(*changes: Any, key: str = "{key}", form: LineEncoding | None = None, **told: Any) -> list[OutgoingRecord]:
    chosen = form or LineEncoding()
    settings: dict[str, Any] = {"most_bytes": 1_000_000, "tombstones": False, "headers": True}
    writer = RecordWriter(chosen, TopicPattern.parse(""), RecordKeys(KeyPattern.parse(key), chosen), **settings | told)
    receipts = write_partition(writer, [message(1, *changes)])
    return [record for receipt in receipts for record in decode_records(receipt.body)]


def keys(*changes: Any, **told: Any) -> list[bytes | None]:
    return [key for _, _, key, _ in records(*changes, **told)]


def test_a_key_is_json_of_its_columns_in_key_order() -> None:
    changes = [insert(PAIRS, b'x"y', b"7", b"n"), delete(PAIRS, b"z", b"8", None)]
    assert keys(*changes) == [b'{"a":7,"b":"x\\"y"}', b'{"a":8,"b":"z"}']
    assert keys(*changes, form=LineEncoding(column_case=ColumnCase.UPPER)) == [b'{"A":7,"B":"x\\"y"}', b'{"A":8,"B":"z"}']
    assert keys(*changes, key="{table}") == [b"pairs", b"pairs"]
    assert keys(*changes, key="{table}:{key}")[1] == b'pairs:{"a":8,"b":"z"}'


@pytest.mark.parametrize("key", ["{key}", "{table}"])
def test_a_changed_key_is_two_records_in_the_shape_of_debezium_alone(key: str) -> None:
    change = update(FULL, b"4", b"f", old=(b"3", b"e"))
    told = [group.headers[0][1] for group, _, _, _ in records(change, key=key, form=LineEncoding(LineShape.DEBEZIUM))]
    assert told == [b"delete", b"insert"]
    assert [group.headers[0][1] for group, _, _, _ in records(change, key=key)] == [b"update"]


def test_an_update_that_keeps_its_key_is_one_record() -> None:
    change = update(FULL, b"3", b"f", old=(b"3", b"e"))
    assert keys(change, form=LineEncoding(LineShape.DEBEZIUM), tombstones=True) == [b'{"id":3}']


def test_records_that_are_too_large_are_all_named() -> None:
    changes = [insert(FULL, b"%d" % n, b"x" * (5000 if n % 2 else 5)) for n in range(1, 5)]
    with pytest.raises(RejectedChanges) as refused:
        records(*changes, most_bytes=3000)
    assert [each.position for each in refused.value.rejections] == [Position(LSN(1000), 1), Position(LSN(1000), 3)]
    assert "kafka-max-record-bytes (3000)" in refused.value.rejections[0].reason


def test_without_headers_there_are_none() -> None:
    [(group, ordinal, _, value)] = records(insert(FULL, b"1", b"a"), headers=False)
    assert (group.topic, group.place, group.headers, ordinal) == ("public.full", b"", (), 1)
    assert value is not None
    assert value.endswith(b"}")
