"""Changes that are taken off the socket's bytes in runs become the same messages as those that are looked at one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.replicator.assembler import CUT_BYTES, LOGICAL_MESSAGE, RELATION, Assembler, Message, Published
from pgsluice.replicator.source.copy_data import COPY_DATA, FRAME_OFFSET, KIND_OFFSET, XLOG_DATA, encode_message, message_end
from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.message import split_body
from pgsluice.shared.wire.position import LSN, Position
from tests.replicator import frames

OTHER = frames.OID + 1
NOTHING = Published(None, LSN(0), settled=True)

change = st.one_of(
    st.builds(frames.insert, st.binary(max_size=40), st.sampled_from([frames.OID, OTHER])).map(lambda frame: [frame]),
    st.builds(frames.insert, st.integers(3000, 5000).map(bytes)).map(lambda frame: [frame]),
    st.just([frames.truncate(frames.OID)]),
    st.just([frames.definition()]),
    st.just([frames.relation(OTHER, name=b"renamed"), frames.insert(b"a", OTHER)]),
)
transaction = st.tuples(
    st.booleans(), st.lists(change, max_size=6).map(lambda changes: [frame for frames_of in changes for frame in frames_of])
)


def stream_of(transactions: Iterable[tuple[bool, Sequence[bytes]]]) -> list[bytes]:
    found = [frames.relation(frames.OID), frames.relation(OTHER, name=b"o")]
    for number, (has_origin, changes) in enumerate(transactions, start=1):
        found.append(frames.begin(100 * number, xid=number))
        found += [frames.origin(b"elsewhere")] if has_origin else []
        found += [*changes, frames.commit(100 * number)]
    return found


def add(assembler: Assembler, frame: bytes) -> Message | None:
    if frame[0] == RELATION:
        oid = int.from_bytes(frame[1:5], "big")
        return assembler.add_relation(frame, frames.table(oid))
    if frame[0] == LOGICAL_MESSAGE:
        return assembler.add_definition(frame)
    return assembler.add(frame)


def one_by_one(stream: Iterable[bytes], published: Published, cut_bytes: int, until: int | None) -> list[Message | None]:
    assembler = Assembler(published, cut_bytes)
    messages: list[Message | None] = []
    for frame in stream:
        if frame[:1] == b"B" and until is not None and frames.begin_lsn(frame) >= until:
            break
        messages.append(add(assembler, frame))
    return [message for message in [*messages, assembler.drained()] if message is not None]


def in_runs(pieces: Iterable[bytes], published: Published, cut_bytes: int, until: int | None) -> tuple[list[Message | None], int]:
    """The messages, and how many frames went one by one."""
    assembler, rest, alone = Assembler(published, cut_bytes), b"", 0
    messages: list[Message | None] = []
    limit = None if until is None else LSN(until)
    for piece in pieces:
        data, position = rest + piece, 0
        while True:
            position = assembler.add_run(data, position, limit)
            end = message_end(data, position)
            if end < 0:
                break
            if data[position] == COPY_DATA and data[position + KIND_OFFSET] == XLOG_DATA:
                frame = data[position + FRAME_OFFSET : end]
                if frame[:1] == b"B" and until is not None and frames.begin_lsn(frame) >= until:
                    return [message for message in [*messages, assembler.drained()] if message is not None], alone
                messages.append(add(assembler, frame))
                alone += 1
            position = end
        rest = data[position:]
    assert rest == b""
    return [message for message in [*messages, assembler.drained()] if message is not None], alone


@given(
    st.lists(transaction, max_size=12),
    st.sampled_from([1, 60, 150, 400, 4000, CUT_BYTES]),
    st.lists(st.integers(1, 5000), min_size=1, max_size=10),
    st.sampled_from([None, 100, 350, 700]),
    st.sampled_from(
        [NOTHING, Published(Position(LSN(200), 1), LSN(108), False), Published(Position(LSN(300), 2), LSN(308), True)]
    ),
)
def test_runs_make_the_same_messages_however_the_bytes_are_cut(
    transactions: list[tuple[bool, list[bytes]]], cut_bytes: int, sizes: list[int], until: int | None, published: Published
) -> None:
    number_of_last = published.last.commit_lsn // 100 if published.last else 0
    ordinals = published.last.ordinal if published.last else 0
    insert = frames.insert(b"published")
    # What the stream says was published is there, and goes on where it is not settled.
    transactions = [(False, [insert] * (ordinals + 1)) for _ in range(number_of_last)] + transactions
    stream = stream_of(transactions)
    data = b"".join(frames.xlog_data(frame) + (b"" if n % 7 else frames.keepalive(7)) for n, frame in enumerate(stream))
    pieces, start, n = [], 0, 0
    while start < len(data):
        pieces.append(data[start : start + sizes[n % len(sizes)]])
        start, n = start + len(pieces[-1]), n + 1
    assert in_runs(pieces, published, cut_bytes, until)[0] == one_by_one(stream, published, cut_bytes, until)


SMALL = [
    (False, [frames.insert(b"a"), frames.insert(b"bcd")]),
    (False, [frames.insert(b"e")]),
    (False, [frames.insert(b"f")] * 3),
]


def test_a_stream_may_end_and_go_on_between_any_two_bytes() -> None:
    stream = stream_of(SMALL)
    data = b"".join(map(frames.xlog_data, stream))
    expected = one_by_one(stream, NOTHING, CUT_BYTES, None)
    for cut in range(len(data) + 1):
        assert in_runs([data[:cut], data[cut:]], NOTHING, CUT_BYTES, None)[0] == expected
    assert in_runs([data[n : n + 1] for n in range(len(data))], NOTHING, CUT_BYTES, None)[0] == expected


def test_small_transactions_are_taken_in_runs() -> None:
    """Two relations, then the first Begin and its first change, and the last Commit."""
    data = b"".join(map(frames.xlog_data, stream_of([(False, [frames.insert(b"a")] * 4)] * 100)))
    assert in_runs([data], NOTHING, CUT_BYTES, None)[1] == 5


@pytest.mark.parametrize("wal_start", [1 << 33, 1 << 50, (1 << 64) - 1])
def test_runs_are_taken_wherever_the_wal_has_come_to(wal_start: int) -> None:
    stream = stream_of([(False, [frames.insert(b"a")] * 4)] * 100)
    data = b"".join(frames.xlog_data(frame, wal_start) for frame in stream)
    messages, alone = in_runs([data], NOTHING, CUT_BYTES, None)
    assert messages == one_by_one(stream, NOTHING, CUT_BYTES, None)
    assert alone == 5


def same_either_way(
    stream: Sequence[bytes], published: Published = NOTHING, cut_bytes: int = CUT_BYTES, until: int | None = None
) -> list[Message | None]:
    data = b"".join(map(frames.xlog_data, stream))
    messages = one_by_one(stream, published, cut_bytes, until)
    assert in_runs([data], published, cut_bytes, until)[0] == messages
    return messages


ROW = frames.insert(b"a")


def test_runs_are_cut_where_a_message_is_full() -> None:
    assert len(same_either_way(stream_of([(False, [ROW] * 50_000)]))) > 3
    assert len(same_either_way(stream_of([(False, [ROW])] * 20_000))) > 3
    for cut_bytes in range(1, 400):
        same_either_way(stream_of([(False, [ROW] * 5)] * 5), cut_bytes=cut_bytes)


@pytest.mark.parametrize("until", [100, 500, 501, 599, 600, 10_000])
def test_runs_end_before_the_transaction_at_which_to_end(until: int) -> None:
    same_either_way(stream_of([(False, [ROW] * 2)] * 10), until=until)


def test_a_run_from_a_transaction_that_goes_on_skips_nothing_of_the_next_one() -> None:
    published = Published(Position(LSN(100), 3), LSN(0), settled=False)
    long = frames.insert(bytes(5000))
    [message] = same_either_way(stream_of([(False, [ROW] * 5), (False, [ROW, long, long])]), published)
    assert message is not None
    assert message.changes == 2 + 3


def test_an_origin_is_not_taken_over_into_the_next_transaction() -> None:
    assert len(same_either_way(stream_of([(True, [ROW]), (False, [ROW] * 40)]), cut_bytes=400)) > 1


def test_a_transaction_with_a_definition_ends_its_message_after_a_run_too() -> None:
    messages = same_either_way(stream_of([(False, [frames.definition(), ROW, ROW]), (False, [ROW] * 3)]))
    assert [message.changes for message in messages if message is not None] == [1, 2, 3]


def test_a_transaction_that_lies_before_what_was_published_is_skipped_after_a_run_too() -> None:
    published = Published(Position(LSN(200), 1), LSN(208), settled=True)
    stream = [*stream_of([(False, [ROW])] * 3), frames.begin(150), ROW, frames.commit(150)]
    [message] = same_either_way(stream, published)
    assert message is not None
    assert message.last == Position(LSN(300), 1)


def test_a_message_names_no_table_that_only_the_one_before_has() -> None:
    stream = stream_of([(False, [ROW, frames.insert(b"a", OTHER), *[ROW] * 10])])
    messages = same_either_way(stream, cut_bytes=60)
    relations = [sum(frame[:1] == b"R" for frame in split_body(message.body)[1]) for message in messages if message is not None]
    assert (relations[0], relations[-1]) == (2, 1)


@pytest.mark.parametrize(
    "broken",
    [
        [frames.commit(100), frames.type_frame(99, b"t" * 8), ROW],
        [frames.commit(101), frames.begin(200), ROW],
        [b"Y" + frames.commit(100)[1:], frames.begin(200), ROW],
        [frames.commit(100) + b"x", frames.begin(200), ROW],
        [frames.commit(100), frames.begin(200) + b"x", ROW],
        [frames.commit(100)[:-1], frames.begin(200), ROW],
    ],
    ids=["no Begin", "another Commit", "no Commit", "long Commit", "long Begin", "short Commit"],
)
def test_what_looks_like_a_small_transaction_and_is_none_is_refused(broken: list[bytes]) -> None:
    stream = [frames.relation(), frames.begin(100), ROW, *broken]
    with pytest.raises(WireError):
        one_by_one(stream, NOTHING, CUT_BYTES, None)
    with pytest.raises(WireError):
        in_runs([b"".join(map(frames.xlog_data, stream))], NOTHING, CUT_BYTES, None)


def test_what_looks_like_a_change_in_another_message_begins_no_transaction() -> None:
    """A transaction without changes makes no message, whatever comes between its Begin and its Commit."""
    before, empty = [frames.relation(), frames.begin(100), ROW, frames.commit(100)], [frames.begin(200), frames.commit(200)]
    notice = encode_message(ord("N"), bytes(25) + ROW)
    data = [*map(frames.xlog_data, [*before, empty[0]]), notice, frames.xlog_data(empty[1])]
    assert in_runs([b"".join(data)], NOTHING, CUT_BYTES, None)[0] == one_by_one([*before, *empty], NOTHING, CUT_BYTES, None)
