"""What is left out of the stream, frame by frame: changes of tables that nobody follows, or that left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.replicator.assembler import MOST_UNPLACED, Assembler, Message, Published
from pgsluice.replicator.followed_tables import FollowedTables
from pgsluice.replicator.source.copy_data import FRAME_OFFSET, message_end
from pgsluice.shared.wire.message import split_body
from pgsluice.shared.wire.position import LSN, Position
from tests.replicator import frames

NOTHING = Published(None, LSN(0), settled=True)
STRANGER = frames.OID + 1


def numbered(kind: str, number: int) -> bytes:
    oid = frames.OID if kind == "a" else STRANGER
    return frames.truncate(frames.OID, STRANGER) if kind == "t" else frames.insert(b"%09d" % number, oid)


@given(st.lists(st.lists(st.sampled_from("aabbt"), max_size=8), min_size=1, max_size=5), st.data())
def test_what_is_left_out_of_a_table_that_nobody_follows_moves_no_other_change(
    transactions: list[list[str]], data: st.DataObject
) -> None:
    """It may be followed in one session and not in another."""
    stream, expected = list[bytes](), list[tuple[Position, bytes]]()
    for number, transaction in enumerate(transactions, 1):
        lsn = number * 100
        changes = [numbered(kind, number * 100 + place) for place, kind in enumerate(transaction, 1)]
        expected += [(Position(LSN(lsn), place), frame) for place, frame in enumerate(changes, 1) if is_followed(frame)]
        stream += [frames.begin(lsn), *changes, frames.commit(lsn)]
    published, found = NOTHING, list[tuple[Position, bytes]]()
    for session in range(3):
        followed = FollowedTables()
        followed.begin({frames.OID} | ({STRANGER} if data.draw(st.booleans()) else set()), {})
        made = Assembler(published, cut_bytes=data.draw(st.sampled_from([60, 1000])), followed=followed)
        for oid in (frames.OID, STRANGER):
            assert made.add_relation(frames.relation(oid), frames.table(oid)) is None
        end = len(stream) if session == 2 else data.draw(st.integers(0, len(stream)))
        for frame in stream[:end]:
            for each in (made.add(frame), made.drained() if session == 2 or data.draw(st.booleans()) else None):
                if each is not None:
                    found += changes_of(each)
                    published = Published(each.last, each.flushed, each.settled)
    assert [(place, frame) for place, frame in found if frame[:1] == b"I"] == [
        (place, frame) for place, frame in expected if frame[:1] == b"I"
    ]
    truncated = [place for place, frame in found if frame[:1] == b"T"]
    assert truncated == [place for place, frame in expected if frame[:1] == b"T"]


def is_followed(frame: bytes) -> bool:
    return frame[1:5] != STRANGER.to_bytes(4)


def changes_of(message: Message) -> list[tuple[Position, bytes]]:
    """Those of the table that is followed; what stands for others counts."""
    ordinal, lsn, changes, count = message.first.ordinal - 1, message.first.commit_lsn, list[tuple[Position, bytes]](), 0
    for frame in split_body(message.body)[1]:
        if frame[:1] == b"B":
            begun = LSN(int.from_bytes(frame[1:9]))
            ordinal, lsn = (ordinal, lsn) if begun == lsn else (0, begun)
        elif frame[:1] in (b"I", b"M", b"T"):
            ordinal, count = ordinal + 1, count + 1
            if frame[:1] != b"M" and is_followed(frame):
                changes.append((Position(lsn, ordinal), frame))
    assert count == message.changes
    return changes


def test_a_transaction_of_strangers_alone_makes_no_message_however_the_open_one_goes_on() -> None:
    followed, met = FollowedTables(), list[int]()
    followed.begin({frames.OID}, {})
    followed.on_stranger = lambda: met.append(1)
    made = Assembler(NOTHING, followed=followed)
    made.add_relation(frames.relation(), frames.table())
    for frame in (frames.begin(100), *[frames.insert(b"b", STRANGER)] * 3, frames.truncate(STRANGER), frames.commit(100)):
        assert made.add(frame) is None
    assert (made.is_empty, made.drained(), met) == (True, None, [1])
    assert not followed.has(STRANGER)
    for frame in (frames.begin(200), frames.truncate(STRANGER, frames.OID), frames.commit(200)):
        made.add(frame)
    message = made.drained()
    assert message is not None
    assert [frame for frame in split_body(message.body)[1] if frame[:1] == b"T"] == [frames.truncate(frames.OID)]


def test_many_changes_that_are_left_out_before_one_that_is_not_fit_into_messages() -> None:
    followed, left_out = FollowedTables(), 3 * MOST_UNPLACED
    followed.begin({frames.OID}, {})
    made = Assembler(NOTHING, cut_bytes=1000, followed=followed)
    made.add_relation(frames.relation(), frames.table())
    stream = [frames.begin(100), *[frames.insert(b"b", STRANGER)] * left_out, frames.insert(b"a"), frames.commit(100)]
    messages = [message for frame in stream if (message := made.add(frame)) is not None]
    messages += [message for message in (made.drained(),) if message is not None]
    assert max(message.changes for message in messages) <= MOST_UNPLACED + 1
    assert [place for message in messages for place, _ in changes_of(message)] == [Position(LSN(100), left_out + 1)]


def test_a_table_that_left_is_followed_up_to_its_end_also_in_runs_of_changes() -> None:
    followed = FollowedTables()
    followed.begin({frames.OID}, {})
    made = Assembler(NOTHING, followed=followed)
    made.add_relation(frames.relation(), frames.table())

    def run(*lsns: int) -> None:
        transactions = [[frames.begin(lsn), *[frames.insert(b"a")] * 3, frames.commit(lsn)] for lsn in lsns]
        data = b"".join(frames.xlog_data(frame) for transaction in transactions for frame in transaction)
        place = 0
        while (place := made.add_run(data, place)) < len(data):
            end = message_end(data, place)
            made.add(data[place + FRAME_OFFSET : end])
            place = end

    run(100)
    followed.leave(frames.OID, LSN(300))
    followed.leave(frames.OID, LSN(400))
    run(200, 300)
    message = made.drained()
    assert message is not None
    assert (message.last, message.changes) == (Position(LSN(200), 3), 6)
