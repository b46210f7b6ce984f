"""Frames become messages: every change once, in order, in messages that decode alone."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.replicator.assembler import COMMIT_CUT_BYTES, CUT_BYTES, LEFT_OUT, LOGICAL_MESSAGE, Assembler, Message, Published
from pgsluice.replicator.relations import MOST_HEAD_BYTES, Relations
from pgsluice.shared.errors import HistoryError, TerminalError, WireError
from pgsluice.shared.wire.message import Descriptor, split_body
from pgsluice.shared.wire.position import LSN, Position
from tests.replicator import frames

NOTHING = Published(None, LSN(0), settled=True)


def assembler(published: Published = NOTHING, cut_bytes: int = CUT_BYTES) -> Assembler:
    made = Assembler(published, cut_bytes)
    assert made.add_relation(frames.relation(), frames.table()) is None
    return made


def kinds(message: Message) -> str:
    """The kinds of a message's frames, like "RBIIC"."""
    return "".join(chr(frame[0]) for frame in split_body(message.body)[1])


def position(lsn: int, ordinal: int) -> Position:
    return Position(LSN(lsn), ordinal)


def test_a_small_transaction_is_a_message_as_soon_as_the_socket_is_drained() -> None:
    made = assembler()
    for frame in (frames.begin(100), frames.insert(b"a"), frames.insert(b"b"), frames.commit(100)):
        assert made.add(frame) is None
    message = made.drained()
    assert message is not None
    assert kinds(message) == "RBIIC"
    assert (message.first, message.last) == (position(100, 1), position(100, 2))
    assert (message.flushed, message.settled, message.changes) == (108, True, 2)
    assert made.is_empty
    assert made.drained() is None


def test_an_open_transaction_is_not_cut_because_the_socket_is_drained() -> None:
    made = assembler()
    made.add(frames.begin(100))
    made.add(frames.insert(b"a"))
    assert made.drained() is None
    assert not made.is_empty


def test_transactions_that_come_together_share_a_message() -> None:
    made = assembler()
    for lsn in (100, 200):
        for frame in (frames.begin(lsn), frames.insert(b"a"), frames.commit(lsn)):
            made.add(frame)
    message = made.drained()
    assert message is not None
    assert kinds(message) == "RBICBIC"
    assert (message.first, message.last, message.flushed) == (position(100, 1), position(200, 1), 208)


def test_a_message_that_is_nearly_full_is_cut_at_the_commit() -> None:
    made = assembler()
    made.add(frames.begin(100))
    assert made.add(frames.insert(b"x" * COMMIT_CUT_BYTES)) is None
    message = made.add(frames.commit(100))
    assert message is not None
    assert message.settled


def test_a_full_message_is_cut_before_the_next_change_and_the_begin_is_repeated() -> None:
    made = assembler()
    made.add(frames.begin(100))
    made.add(frames.origin(b"elsewhere"))
    made.add(frames.insert(b"x" * CUT_BYTES))
    first = made.add(frames.insert(b"y"))
    assert made.add(frames.commit(100)) is None
    second = made.drained()
    assert first is not None
    assert second is not None
    assert (kinds(first), kinds(second)) == ("RBOI", "RBOIC")
    assert (first.first, first.last, first.flushed, first.settled) == (position(100, 1), position(100, 1), 0, False)
    assert (second.first, second.last, second.flushed, second.settled) == (position(100, 2), position(100, 2), 108, True)


def test_an_origin_does_not_leak_into_the_next_transaction() -> None:
    made = assembler()
    for frame in (frames.begin(100), frames.origin(b"elsewhere"), frames.insert(b"a"), frames.commit(100)):
        made.add(frame)
    made.drained()
    for frame in (frames.begin(200), frames.insert(b"a"), frames.commit(200)):
        made.add(frame)
    message = made.drained()
    assert message is not None
    assert kinds(message) == "RBIC"


def test_an_empty_transaction_makes_no_message_but_moves_flushed() -> None:
    made = assembler()
    made.add(frames.begin(100))
    assert made.in_transaction
    made.add(frames.commit(100))
    assert made.drained() is None
    assert (made.flushed, made.is_empty) == (108, True)


def test_a_message_holds_only_the_relations_and_types_that_it_uses() -> None:
    made = assembler()
    made.add(frames.type_frame(9001, b"mood"))
    made.add(frames.type_frame(9002, b"other"))
    made.add_relation(frames.relation(500, b"moods", type_oid=9001), frames.table(500, "moods", type_oid=9001))
    made.add_relation(frames.relation(501, b"emptied"), frames.table(501, "emptied"))
    for frame in (frames.begin(100), frames.insert(b"sad", 500), frames.truncate(501), frames.commit(100)):
        made.add(frame)
    message = made.drained()
    assert message is not None
    assert kinds(message) == "YRRBITC"
    names = {table.name for table in Descriptor.decode(split_body(message.body)[0]).tables}
    assert names == {"moods", "emptied"}


def test_a_type_that_is_told_again_is_told_to_later_messages() -> None:
    made, bodies = assembler(), []
    made.add_relation(frames.relation(500, b"moods", type_oid=9001), frames.table(500, "moods", type_oid=9001))
    for lsn, name in ((100, b"mood"), (200, b"temper")):
        made.add(frames.type_frame(9001, name))
        for frame in (frames.begin(lsn), frames.insert(b"sad", 500), frames.commit(lsn)):
            made.add(frame)
        message = made.drained()
        assert message is not None
        bodies.append(message.body)
    assert [(b"mood\0" in body, b"temper\0" in body) for body in bodies] == [(True, False), (False, True)]


def test_what_ends_a_message_after_the_begin_of_a_transaction_leaves_it_the_anchor_of_its_own() -> None:
    made = assembler()
    for frame in (frames.begin(100, xid=7), frames.insert(b"a"), frames.commit(100), frames.begin(200, xid=8)):
        made.add(frame)
    message = made.add_relation(frames.relation(column=b"renamed"), frames.table(column="renamed"))
    assert message is not None
    assert (message.last, message.xid, message.settled) == (position(100, 1), 7, True)


def test_a_relation_that_differs_cuts_the_message_so_that_it_holds_one_version() -> None:
    made = assembler()
    made.add(frames.begin(100))
    made.add(frames.insert(b"a"))
    cut = made.add_relation(frames.relation(column=b"w"), frames.table(column="w"))
    made.add(frames.insert(b"b"))
    made.add(frames.commit(100))
    rest = made.drained()
    assert cut is not None
    assert rest is not None
    assert (kinds(cut), kinds(rest)) == ("RBI", "RBIC")
    assert Descriptor.decode(split_body(rest.body)[0]).tables[0].columns[0].name == "w"


def test_a_relation_that_is_repeated_is_dropped_unless_the_catalog_changed() -> None:
    made = assembler()
    made.add(frames.begin(100))
    made.add(frames.insert(b"a"))
    assert made.add_relation(frames.relation(), frames.table()) is None
    assert made.add_relation(frames.relation(), frames.table(not_null=True)) is not None


def test_a_transaction_that_was_published_in_part_goes_on_behind_its_last_position() -> None:
    made = assembler(Published(position(200, 2), LSN(108), settled=False))
    stream = [frames.begin(100), frames.insert(b"old"), frames.commit(100), frames.begin(200)]
    for frame in stream + [frames.insert(value) for value in (b"1", b"2", b"3", b"4")] + [frames.commit(200)]:
        assert made.add(frame) is None
    message = made.drained()
    assert message is not None
    assert kinds(message) == "RBIIC"
    assert (message.first, message.last, message.flushed) == (position(200, 3), position(200, 4), 208)


def test_a_transaction_that_was_published_whole_is_skipped() -> None:
    made = assembler(Published(position(200, 1), LSN(208), settled=True))
    for frame in (frames.begin(200), frames.insert(b"1"), frames.commit(200), frames.begin(300), frames.insert(b"2")):
        made.add(frame)
    made.add(frames.commit(300))
    message = made.drained()
    assert message is not None
    assert message.first == message.last == position(300, 1)


def test_a_transaction_that_ends_where_the_stream_says_it_goes_on_is_an_error() -> None:
    made = assembler(Published(position(200, 1), LSN(108), settled=False))
    made.add(frames.begin(200))
    made.add(frames.insert(b"1"))
    with pytest.raises(TerminalError, match="ends at a position where the stream continues it"):
        made.add(frames.commit(200))


@pytest.mark.parametrize(
    "stream",
    [
        [frames.insert(b"a")],
        [frames.commit(100)],
        [frames.begin(100), frames.begin(200)],
        [frames.begin(100), frames.commit(200)],
        [b"M\0" + bytes(20)],
    ],
)
def test_a_frame_out_of_place_is_an_error(stream: list[bytes]) -> None:
    made = assembler()
    for frame in stream[:-1]:
        made.add(frame)
    with pytest.raises(WireError):
        made.add(stream[-1])


@dataclass
class Received:
    """Joins messages as a reader would, and checks each on its own."""

    changes: list[tuple[Position, bytes]] = field(default_factory=list)

    def take(self, message: Message | None) -> None:
        if message is None:
            return
        assert message.first <= message.last
        frames_of = split_body(message.body)[1]
        ordinal, lsn = message.first.ordinal - 1, message.first.commit_lsn
        changes = 0
        for frame in frames_of:
            if frame[:1] == b"B":
                begun = LSN(int.from_bytes(frame[1:9]))
                ordinal, lsn = (ordinal, lsn) if begun == lsn else (0, begun)
            elif frame[:1] in (b"I", b"M"):
                ordinal += 1
                changes += 1
                self.changes.append((Position(lsn, ordinal), frame[12 + 1 :]))
        assert message.is_definition == any(frame[:1] == b"M" for frame in frames_of)
        assert not message.is_definition or changes == 1
        assert message.changes == changes
        assert (frames_of[-1][:1] == b"C") == message.settled
        assert self.changes[-1][0] == message.last
        assert self.changes[-changes][0] == message.first


DEFINITION = -1
transactions = st.lists(st.lists(st.integers(DEFINITION, 120), max_size=6), max_size=8)


def change(size: int) -> bytes:
    return frames.definition() if size == DEFINITION else frames.insert(b"x" * size)


def add(made: Assembler, frame: bytes) -> Message | None:
    return made.add_definition(frame) if frame[0] == LOGICAL_MESSAGE else made.add(frame)


@given(transactions, st.data())
def test_every_change_is_published_once_whatever_the_sizes_and_wherever_sessions_end(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    stream: list[bytes] = []
    expected: list[Position] = []
    for number, transaction in enumerate(sizes, 1):
        lsn = number * 100
        expected += [position(lsn, ordinal) for ordinal in range(1, len(transaction) + 1)]
        stream += [frames.begin(lsn), *map(change, transaction), frames.commit(lsn)]
    received = Received()
    published = NOTHING
    for _ in range(data.draw(st.integers(0, 3))):  # sessions that end anywhere; unpublished parts are received again
        made = assembler(published, cut_bytes=100)
        for frame in stream[: data.draw(st.integers(0, len(stream)))]:
            for message in (add(made, frame), made.drained() if data.draw(st.booleans()) else None):
                received.take(message)
                if message is not None:
                    published = Published(message.last, message.flushed, message.settled)
    made = assembler(published, cut_bytes=100)
    for frame in stream:
        received.take(add(made, frame))
    received.take(made.drained())
    assert [place for place, _ in received.changes] == expected


def test_a_definition_is_alone_in_its_message_and_its_transaction_ends_one() -> None:
    made = assembler()
    stream = [
        *(frames.begin(100), frames.insert(b"a"), frames.commit(100)),
        *(
            frames.begin(200),
            frames.insert(b"b"),
            frames.definition(),
            frames.insert(b"c"),
            frames.definition(),
            frames.commit(200),
        ),
        *(frames.begin(300), frames.definition(), frames.insert(b"d"), frames.commit(300)),
        *(frames.begin(400), frames.insert(b"e"), frames.commit(400)),
    ]
    messages = [message for message in [*(add(made, frame) for frame in stream), made.drained()] if message is not None]
    assert [kinds(message) for message in messages] == ["RBICBI", "BM", "RBI", "BMC", "BM", "RBIC", "RBIC"]
    assert [message.is_definition for message in messages] == [False, True, False, True, True, False, False]
    assert [message.settled for message in messages] == [False, False, False, True, False, True, True]
    assert [message.last for message in messages] == [
        *(position(200, ordinal) for ordinal in (1, 2, 3, 4)),
        *(position(300, 1), position(300, 2), position(400, 1)),
    ]


def test_definitions_of_a_transaction_that_an_earlier_version_published_in_part_have_no_ordinals() -> None:
    """It did not count them, and so the changes behind them would be taken for others."""
    made = assembler(Published(position(100, 1), LSN(8), settled=False, counts_definitions=False))
    for frame in (frames.begin(100), frames.definition(), frames.insert(b"a"), frames.definition(), frames.insert(b"b")):
        assert add(made, frame) is None
    message = made.add(frames.commit(100)) or made.drained()
    assert message is not None
    assert kinds(message) == "RBIC"
    assert message.last == position(100, 2)
    for frame in (frames.begin(200), frames.definition()):
        assert add(made, frame) is None
    message = made.add(frames.commit(200))
    assert message is not None
    assert message.is_definition, "and of a later one they have"


@given(st.lists(st.lists(st.sampled_from("drf"), max_size=8), min_size=1, max_size=4), st.data())
def test_every_row_is_published_once_whichever_sessions_are_asked_for_definitions(
    transactions: list[list[str]], data: st.DataObject
) -> None:
    """A capture may come and go, and with it logical messages; some are forged."""
    stream: list[tuple[str, bytes]] = []
    rows = 0
    for number, transaction in enumerate(transactions, 1):
        stream.append(("b", frames.begin(number * 100)))
        for kind in transaction:
            rows += kind == "r"
            stream.append((kind, frames.insert(b"%09d" % rows) if kind == "r" else frames.definition()))
        stream.append(("c", frames.commit(number * 100)))
    published, places, found = NOTHING, list[Position](), list[bytes]()
    for session in range(4):
        asks = data.draw(st.booleans()) or (published.counts_definitions and not published.settled)
        made = Assembler(published, cut_bytes=data.draw(st.sampled_from([60, 1000])), counts_definitions=asks)
        assert made.add_relation(frames.relation(), frames.table()) is None
        end = len(stream) if session == 3 else data.draw(st.integers(0, len(stream)))
        for kind, frame in stream[:end]:
            if kind in "df" and not asks:
                continue
            message = made.add_definition(frame) if kind == "d" else made.add_forged() if kind == "f" else made.add(frame)
            for each in (message, made.drained() if session == 3 or data.draw(st.booleans()) else None):
                if each is not None:
                    places += [each.first, each.last]
                    found += [frame[-9:] for frame in split_body(each.body)[1] if frame[:1] == b"I"]
                    published = Published(each.last, each.flushed, each.settled, counts_definitions=each.counts_definitions)
    assert found == [b"%09d" % row for row in range(1, rows + 1)]
    assert all(first <= last for first, last in zip(places[::2], places[1::2], strict=True))
    assert all(last < first for last, first in zip(places[1::2], places[2::2], strict=False))


def test_a_place_after_what_was_published_last_is_not_reached_without_it() -> None:
    made = assembler(Published(position(100, 1), LSN(108), settled=True, is_due=True))
    made.check_reached(LSN(100))
    with pytest.raises(HistoryError, match="without it"):
        made.check_reached(LSN(101))
    made.add(frames.begin(100))
    made.add(frames.commit(100))
    made.check_reached(LSN(101))


def test_what_messages_begin_with_is_kept_for_no_more_than_a_few_combinations_of_tables() -> None:
    """Each message is of other ones of many tables, so what is kept for one is of use for hardly any other."""
    made, oids = Assembler(NOTHING), range(frames.OID, frames.OID + 40)
    for oid in oids:
        made.add_relation(frames.relation(oid), frames.table(oid))
    random, held = Random(1), []
    tracemalloc.start()
    try:
        for lsn in range(1, 4001):
            made.add(frames.begin(lsn))
            for oid in random.sample(oids, 20):
                made.add(frames.insert(b"a", oid))
            made.add(frames.commit(lsn))
            assert made.drained() is not None
            if lsn % 2000 == 0:
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 1_000_000


def test_what_messages_begin_with_is_kept_after_there_was_too_much_of_it_too() -> None:
    relations, oids = Relations(), [number.to_bytes(4) for number in range(frames.OID, frames.OID + 40)]
    for oid in oids:
        relations.note(frames.relation(int.from_bytes(oid)), frames.table(int.from_bytes(oid)))
    random, made = Random(1), 0
    while made <= MOST_HEAD_BYTES:
        made += len(relations.head(random.sample(oids, 20)))
    first = relations.head(oids[:2])
    relations.head(oids[2:4])
    assert relations.head(oids[:2]) is first


def test_a_definition_that_another_makes_needless_says_nothing_and_is_in_its_message() -> None:
    made = assembler()
    made.add(frames.begin(100))
    made.add(frames.insert(b"a"))
    rows = made.add_definition(b"M1", supersedes=True)
    assert rows is not None
    assert kinds(rows) == "RBI"
    assert made.add_definition(b"M2", supersedes=True) is None
    assert made.add_definition(b"M3", supersedes=True) is None
    message = made.add(frames.insert(b"b"))
    assert message is not None
    assert split_body(message.body)[1][1:] == [LEFT_OUT, LEFT_OUT, b"M3"]
    assert (message.is_definition, message.first, message.last) == (True, position(100, 2), position(100, 4))
    assert made.add_definition(b"M4", supersedes=True) is not None
    made.add(frames.commit(100))
    message = made.drained()
    assert message is None or not message.is_definition


def test_definitions_that_are_left_out_fill_no_message() -> None:
    made = assembler(cut_bytes=1000)
    made.add(frames.begin(100))
    for number in range(9):
        assert made.add_definition(b"M%d" % number * 300, supersedes=True) is None
    message = made.add(frames.insert(b"a"))
    assert message is not None
    assert split_body(message.body)[1][1:] == [*[LEFT_OUT] * 8, b"M8" * 300]
