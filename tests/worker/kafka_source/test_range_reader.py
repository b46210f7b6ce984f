"""Ranges of records as message bodies, and the index that names them, without a broker."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import HistoryError, WireError
from pgsluice.shared.pgoutput.messages import Begin
from pgsluice.shared.rows.changes import MessageChanges, TableChanges, Truncation
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.rows.row_frames import relation_frame, row_frames
from pgsluice.shared.wire.kafka_range import IndexEntry, KafkaRange, TopicEnds
from pgsluice.shared.wire.kafka_record import NO_TRANSACTION, encode_record
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.position import LSN, Anchor, Position
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import insert, message, table
from pgsluice.worker.kafka_source.range_index import LONGEST_INTERVAL_S, LOOK_INTERVAL_S, IndexEnd, look_interval_s
from pgsluice.worker.kafka_source.range_reader import body_of_records
from pgsluice.worker.kafka_source.topic_ends import check_goes_on, check_same_topic

ORDERS = table("shop.orders", "id bigint", "note text")
WIDER = table("shop.orders", "id bigint", "note text", "more text")
AFTER = Anchor(Position(LSN(100), 1), 0, 5000)
AT = KafkaRange("cluster", "shop.orders", "id-1", 0, 10, 20)
HEADERS, END = IndexEnd(4, 2048, AFTER).followed_by(AT, {"shop.orders": TopicEnds("id-1", (20, 7))}, 10_240)


def record(of: Table, xid: int, *values: bytes | None) -> bytes:
    [part] = message(1, insert(of, *values)).parts
    assert isinstance(part, TableChanges)
    begin = Begin(LSN(xid * 10), 777, xid) if xid else NO_TRANSACTION
    return encode_record(of, relation_frame(of), begin, row_frames(part, of.oid)[0])


def decoded(*records: tuple[int, bytes]) -> MessageChanges:
    assert HEADERS.anchor is not None
    body = body_of_records(records, AT, AFTER, HEADERS.anchor)
    return decode_changes(body, first_sequence=5, sequence=5, first_ordinal=HEADERS.first.ordinal)


def test_records_of_one_transaction_stay_one_and_each_place_is_its_own() -> None:
    told = decoded(
        (10, record(ORDERS, 1, b"1", b"a")),
        (11, record(ORDERS, 1, b"2", b"b")),
        (14, record(ORDERS, 2, b"3", None)),
        (19, record(ORDERS, 0, b"4", None)),
    )
    [part] = told.parts
    assert isinstance(part, TableChanges)
    assert [list(column) for column in part.new] == [[b"1", b"2", b"3", b"4"], [b"a", b"b", None, None]]
    places = [(each.commit_lsn, each.xid, each.committed_at, each.end_change - each.first_change) for each in told.transactions]
    copied_at = END.anchor.committed_at
    assert places == [(101, 1, 777, 2), (105, 2, 777, 1), (110, 0, copied_at, 1), (111, 0, copied_at, 0)]


def test_a_message_ends_at_its_anchor_whatever_its_range_holds() -> None:
    for told in (decoded(), decoded((19, record(ORDERS, 1, b"1", b"a")))):
        last = told.transactions[-1]
        assert last.commits
        assert (last.commit_lsn, last.committed_at) == (END.anchor.position.commit_lsn, END.anchor.committed_at)
        assert told.change_count == 1, "one without a change would not count as read"


def test_a_range_without_records_changes_no_table() -> None:
    [part] = decoded().parts
    assert isinstance(part, Truncation)
    assert part.tables == ()


def test_rows_of_two_versions_of_a_table_are_parts_in_their_order() -> None:
    old, new = record(ORDERS, 1, b"1", b"a"), record(WIDER, 2, b"2", b"b", b"c")
    parts = decoded((10, old), (11, new), (12, record(ORDERS, 3, b"3", b"d"))).parts
    told = [(len(part.table.columns), part.change_indexes) for part in parts if isinstance(part, TableChanges)]
    assert told == [(2, [0]), (3, [1]), (2, [2])]


def test_an_entry_is_read_as_it_was_written_or_not_at_all() -> None:
    entry = IndexEntry(AT, {"b": TopicEnds("id-2", (1,)), "a": TopicEnds("id-1", (20, 7))})
    encoded = entry.encode()
    assert IndexEntry.decode(encoded) == entry
    for broken in (encoded.replace(b'"end":20', b'"end":21'), encoded[:-1], b"{}", b"1", b"[]"):
        with pytest.raises(WireError):
            IndexEntry.decode(broken)


def test_an_index_counts_on_from_its_newest_message() -> None:
    assert MessageHeaders.decode(HEADERS.encode()) == HEADERS
    assert (HEADERS.settled, HEADERS.after, HEADERS.size) == (5, AFTER, 10 * 1024)
    assert (END.sequence, END.anchor.position.commit_lsn, END.cluster) == (5, 111, "cluster")
    with pytest.raises(WireError, match="lie in Kafka"):
        HEADERS.body([b""])


@pytest.mark.parametrize(
    ("found", "said"), [(("id-2", 2), "created again"), (("id-1", 3), "3 partitions now and had 2"), (("id-1", 2), "")]
)
def test_another_topic_of_the_name_is_refused(found: tuple[str, int], said: str) -> None:
    known = TopicEnds("id-1", (20, 7))
    if not said:
        check_same_topic("shop.orders", known, found)
        check_goes_on("shop.orders", known, (20, 9))
        return
    with pytest.raises(HistoryError, match=said):
        check_same_topic("shop.orders", known, found)


def test_a_partition_that_lost_records_is_refused() -> None:
    with pytest.raises(HistoryError, match=r"partition 1 of topic shop\.orders ends at offset 6"):
        check_goes_on("shop.orders", TopicEnds("id-1", (20, 7)), (20, 6))


def test_looks_are_farther_apart_the_more_ranges_they_add() -> None:
    """Within bounds: few cost nobody their second, and a backlog does not hide what comes behind it."""
    assert look_interval_s(0) == look_interval_s(15) == LOOK_INTERVAL_S
    assert LOOK_INTERVAL_S < look_interval_s(100) < look_interval_s(200) < LONGEST_INTERVAL_S
    assert look_interval_s(100_000) == LONGEST_INTERVAL_S
