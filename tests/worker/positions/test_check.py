"""Where a worker goes on: in the place that holds the transaction it applied last, wherever that is in the stream now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import HistoryError, StreamBehindError
from pgsluice.shared.wire.message import WHOLE, Chunk, MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, Anchor, Position
from pgsluice.testing.changes_builder import insert, table, transaction
from pgsluice.worker.positions.check import Start, check_goes_on, check_snapshot_position, find_start
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, CatchUp, Lane
from tests.servers import NatsServer
from tests.worker.encoded_changes import body_of
from tests.zstd_frame import frame_of

NAMES = GroupNames("orders")
SMALL = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 26, compression="none", retention_s=3600)
TABLE = table("t", "id bigint")


def stream(first_sequence: int, last_sequence: int, created: str = "then") -> StreamState:
    return StreamState(created, first_sequence, last_sequence, last_sequence - first_sequence + 1, 0, 1 << 20)


def anchor(number: int) -> Anchor:
    """Of the only change of the transaction ``number``."""
    return Anchor(Position(LSN(number * 100), 1), number, number * 1_000_000) if number else NO_ANCHOR


def at(sequence: int, number: int) -> Applied:
    """Transactions up to ``number`` are applied."""
    return Applied(sequence, number * 100, number * 1_000_000, "")


@dataclass(frozen=True)
class Sent:
    """A message with the transactions ``numbers``, of which the last ``commits`` in it; ``chunks`` of it are stored, of as many
    as there ``should`` be."""

    numbers: Sequence[int]
    chunks: int = 1
    should: int = 1
    commits: bool = True


async def found(
    server: NatsServer,
    group: str,
    applied: Applied,
    sent: Sequence[Sent],
    *,
    purge: int = 0,
    chained: bool = True,
    compressed: bool = False,
) -> Start:
    """What ``find_start`` says of a stream of ``sent``."""
    async with connected(server.settings(), "test") as client:
        names = GroupNames(group)
        changes = ChangeStream(client, names)
        await changes.ensure(SMALL)
        before, sequence = NO_ANCHOR, 0
        for message in sent:
            rows = {number: insert(TABLE, str(number).encode()) for number in message.numbers}
            parts = [
                transaction(n * 100, row, xid=n, committed_at=n * 1_000_000, commits=n != message.numbers[-1] or message.commits)
                for n, row in rows.items()
            ]
            body, last = body_of(*parts), anchor(message.numbers[-1])
            stored = frame_of(body) if compressed else body
            size = -(-len(stored) // message.should)
            for index in range(1, message.chunks + 1):
                sequence += 1
                chunk = WHOLE if message.should == 1 else Chunk(index, message.should)
                headers = MessageHeaders(
                    first=anchor(message.numbers[0]).position,
                    last=last.position,
                    flushed=LSN(0),
                    settled=sequence if chunk.is_last and message.commits else 0,
                    total_bytes=0,
                    chunk=chunk,
                    anchor=last if chained else None,
                    after=before if chained else None,
                    size=len(body) if compressed else None,
                )
                data = stored[(index - 1) * size : index * size]
                await client.jetstream().publish(changes.subject, data, headers=headers.encode())
            if message.chunks == message.should:
                before = last
        if purge:
            await changes.purge_up_to(purge)
        state = await changes.state()
        assert state is not None
        return await find_start(changes, names, replace(applied, stream_created=state.created), state)


def one_by_one(*numbers: int) -> list[Sent]:
    return [Sent([number]) for number in numbers]


BEHIND = CatchUp(2, 200, 2_000_000, frozenset({7}))


async def test_tables_that_are_behind_the_others_go_on_where_they_were(nats_server: NatsServer, group: str) -> None:
    applied = replace(at(5, 5), catch_up=BEHIND)
    start = await found(nats_server, group, applied, one_by_one(1, 2, 3, 4, 5, 6))
    assert start.applied.catch_up == BEHIND
    assert place(start.of(Lane.CHANGES)) == place(start.of(Lane.CATCH_UP)) == (5, None, 0)


async def test_where_the_stream_counts_anew_each_lane_finds_its_place(nats_server: NatsServer, group: str) -> None:
    applied = replace(at(5, 5), catch_up=BEHIND)
    start = await found(nats_server, group, applied, [Sent([1]), Sent([2, 3]), Sent([4, 5]), Sent([6])])
    assert place(start.of(Lane.CHANGES)) == (2, anchor(3), 501)
    assert place(start.of(Lane.CATCH_UP)) == (1, anchor(1), 201)
    assert start.applied.catch_up == replace(BEHIND, sequence=1)


async def test_tables_that_are_behind_the_others_must_find_what_they_have_applied(nats_server: NatsServer, group: str) -> None:
    applied = replace(at(5, 5), catch_up=replace(BEHIND, commit_lsn=201))
    with pytest.raises(HistoryError, match=r"the applied changes end with the transaction at 0/C9 \(message 2"):
        await found(nats_server, group, applied, one_by_one(1, 2, 3, 4, 5, 6))


def place(start: Start) -> tuple[int, Anchor | None, int]:
    return start.applied.sequence, start.before, start.applied_before


async def test_the_position_counts_where_its_message_ends_with_what_was_applied(nats_server: NatsServer, group: str) -> None:
    assert place(await found(nats_server, group, at(2, 2), one_by_one(1, 2, 3))) == (2, None, 0)


async def test_a_message_that_retention_removed_is_known_by_the_one_after_it(nats_server: NatsServer, group: str) -> None:
    assert place(await found(nats_server, group, at(2, 2), one_by_one(1, 2, 3), purge=2)) == (2, None, 0)


async def test_nothing_applied_begins_at_the_first_message(nats_server: NatsServer, group: str) -> None:
    assert place(await found(nats_server, group, NOTHING_APPLIED, one_by_one(1))) == (0, None, 0)


async def test_a_stream_without_anchors_is_known_by_its_positions(nats_server: NatsServer, group: str) -> None:
    assert place(await found(nats_server, group, at(2, 2), one_by_one(1, 2, 3), chained=False)) == (2, None, 0)


async def test_a_message_before_which_retention_removed_all_says_whose_history_it_is(nats_server: NatsServer, group: str) -> None:
    with pytest.raises(HistoryError, match="another transaction in its place"):
        await found(nats_server, group, replace(at(2, 2), committed_at=17), one_by_one(1, 2, 3), purge=2)


async def test_a_stream_without_anchors_is_believed_when_retention_removed_all_that_is_applied(
    nats_server: NatsServer, group: str
) -> None:
    assert place(await found(nats_server, group, at(2, 2), one_by_one(1, 2, 3), purge=2, chained=False)) == (2, None, 0)


async def test_a_removed_message_is_known_by_the_one_after_it_at_another_sequence_too(
    nats_server: NatsServer, group: str
) -> None:
    assert place(await found(nats_server, group, at(90, 2), one_by_one(1, 2, 3), purge=2)) == (2, None, 0)


async def test_an_empty_stream_is_believed_where_it_ends_with_what_is_applied_and_nowhere_else(
    nats_server: NatsServer, group: str
) -> None:
    assert place(await found(nats_server, group, at(3, 3), one_by_one(1, 2, 3), purge=3)) == (3, None, 0)
    with pytest.raises(HistoryError, match="messages 3 to 3 were not applied by this worker and are gone"):
        await found(nats_server, group + "_ahead", at(2, 2), one_by_one(1, 2, 3), purge=3)
    with pytest.raises(HistoryError, match="but the stream is empty"):
        await found(nats_server, group + "_behind", at(4, 4), one_by_one(1, 2, 3), purge=3)


async def test_a_message_that_ends_inside_of_the_transaction_applied_last_is_not_its_end(
    nats_server: NatsServer, group: str
) -> None:
    sent = [Sent([1]), Sent([2], commits=False), Sent([2]), Sent([3])]
    assert place(await found(nats_server, group, at(2, 2), sent)) == (1, anchor(1), 201)


@pytest.mark.parametrize("applied", [at(3, 3), at(90, 3)])
async def test_what_was_published_again_in_larger_messages_is_gone_on_with_inside_of_one(
    nats_server: NatsServer, group: str, applied: Applied
) -> None:
    """Message 2 holds 2 to 5, of which 2 and 3 are applied."""
    start = await found(nats_server, group, applied, [Sent([1]), Sent([2, 3, 4, 5]), Sent([6]), Sent([7])])
    assert place(start) == (1, anchor(1), 301)
    assert start.applied.commit_lsn == applied.commit_lsn


async def test_what_was_published_again_in_smaller_messages_is_gone_on_with_after_them(
    nats_server: NatsServer, group: str
) -> None:
    sequence, _, applied_before = place(await found(nats_server, group, at(2, 5), one_by_one(1, 2, 3, 4, 5, 6)))
    assert (sequence, applied_before) in [(5, 0), (4, 501)]


@pytest.mark.parametrize("compressed", [False, True])
async def test_chunks_that_were_begun_again_are_passed_over(nats_server: NatsServer, group: str, compressed: bool) -> None:
    sent = [Sent([1]), Sent([2, 3, 4], chunks=2, should=3), Sent([2, 3], chunks=2, should=2), Sent([4])]
    assert place(await found(nats_server, group, at(90, 3), sent, compressed=compressed)) == (3, anchor(1), 301)


async def test_chunks_that_were_begun_again_in_smaller_messages_are_passed_over(nats_server: NatsServer, group: str) -> None:
    sent = [Sent([1]), Sent([2, 3, 4], chunks=2, should=3), Sent([2]), Sent([3]), Sent([4])]
    assert place(await found(nats_server, group, at(90, 3), sent)) == (4, anchor(2), 301)


async def test_a_last_message_that_is_not_complete_may_still_come_to_be(nats_server: NatsServer, group: str) -> None:
    with pytest.raises(StreamBehindError, match=r"the newest message of stream .* is not complete"):
        await found(nats_server, group, at(90, 3), [Sent([1]), Sent([2, 3, 4], chunks=2, should=3)])


async def test_a_message_without_anchors_is_gone_on_inside_of_only_where_it_is_the_first(
    nats_server: NatsServer, group: str
) -> None:
    """Of another one nobody could tell that it goes on from what is applied."""
    sent = [Sent([1, 2, 3]), Sent([4])]
    assert place(await found(nats_server, group, at(90, 2), sent, chained=False)) == (0, None, 201)
    with pytest.raises(HistoryError):
        await found(nats_server, group + "_later", at(90, 3), [Sent([1]), Sent([2, 3, 4])], chained=False)


async def test_a_stream_that_ends_before_what_is_applied_may_still_come_to_hold_it(nats_server: NatsServer, group: str) -> None:
    with pytest.raises(StreamBehindError, match=r"ends at the commit 0/C8, before the applied position \(0/12C\)"):
        await found(nats_server, group, at(3, 3), one_by_one(1, 2))


async def test_another_transaction_at_the_same_lsn_is_another_history(nats_server: NatsServer, group: str) -> None:
    applied = replace(at(2, 2), committed_at=17)
    with pytest.raises(HistoryError, match=r"end with the transaction at 0/C8 \(message 2 .*another transaction in its place"):
        await found(nats_server, group, applied, one_by_one(1, 2, 3))


async def test_a_transaction_that_the_stream_jumps_over_is_another_history(nats_server: NatsServer, group: str) -> None:
    with pytest.raises(HistoryError, match="another transaction in its place, message 2"):
        await found(nats_server, group, at(2, 2), one_by_one(1, 3, 4))


@pytest.mark.parametrize(("applied", "missing"), [(at(1, 1), "2 to 3"), (at(2, 2), "3 to 3"), (NOTHING_APPLIED, "1 to 3")])
async def test_messages_that_were_removed_before_they_were_applied_stop_the_worker(
    nats_server: NatsServer, group: str, applied: Applied, missing: str
) -> None:
    with pytest.raises(HistoryError, match=f"messages {missing} were not applied by this worker and are gone"):
        await found(nats_server, group, applied, one_by_one(1, 2, 3, 4, 5), purge=3)


async def test_a_stream_that_was_created_anew_stops_the_worker(nats_server: NatsServer) -> None:
    applied = replace(at(4, 4), stream_created="then")
    async with connected(nats_server.settings(), "test") as client:
        with pytest.raises(HistoryError, match="created again"):
            await find_start(ChangeStream(client, NAMES), NAMES, applied, stream(1, 9, created="now"))
        with pytest.raises(HistoryError, match="is gone"):
            await find_start(ChangeStream(client, NAMES), NAMES, applied, None)
        assert (await find_start(ChangeStream(client, NAMES), NAMES, NOTHING_APPLIED, None)).applied == NOTHING_APPLIED


def test_a_stream_that_is_replaced_or_put_back_under_a_running_worker_is_noticed() -> None:
    applied = replace(at(4, 4), stream_created="then")
    check_goes_on(NAMES, applied, stream(1, 4))
    check_goes_on(NAMES, NOTHING_APPLIED, None)
    with pytest.raises(StreamBehindError, match=r"ends at message 3, before the applied position \(4\)"):
        check_goes_on(NAMES, applied, stream(1, 3))
    for state in (None, stream(1, 9, created="now")):
        with pytest.raises(HistoryError, match="removed or created again"):
            check_goes_on(NAMES, applied, state)


@pytest.mark.parametrize("state", [stream(1, 9), None])
def test_a_snapshot_stream_that_lost_messages_stops_the_worker(state: StreamState | None) -> None:
    check_snapshot_position(NAMES, at(4, 4), state)
    check_snapshot_position(NAMES, replace(at(4, 4), snapshot_sequence=9), stream(1, 9))
    check_snapshot_position(NAMES, replace(at(4, 4), snapshot_sequence=9), stream(10, 9))
    with pytest.raises(HistoryError, match=r"pgsluice_orders_snapshot ends at message \d, before the applied position \(10\)"):
        check_snapshot_position(NAMES, replace(at(4, 4), snapshot_sequence=10), state)


def test_a_worker_that_comes_when_the_copy_was_removed_is_told_so() -> None:
    with pytest.raises(HistoryError, match="pgsluice_orders_snapshot begins at message 10; messages 1 to 9 were not applied"):
        check_snapshot_position(NAMES, NOTHING_APPLIED, stream(10, 9))
