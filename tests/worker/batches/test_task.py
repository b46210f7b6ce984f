"""Messages follow each other by what each names as before it, however a batch is cut into partitions and receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, NO_ANCHOR, Anchor, Position
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders
from pgsluice.testing.changes_builder import insert, table, transaction
from pgsluice.worker.batches import task_steps
from pgsluice.worker.batches.broker_connection import process_connection
from pgsluice.worker.batches.ownership import NEVER_COPIED
from pgsluice.worker.batches.planning import SequenceRange
from pgsluice.worker.batches.snapshot_reader import CopiedBody
from pgsluice.worker.batches.task import PartitionTask, WarmUp
from pgsluice.worker.batches.task_steps import listen_to_steps
from pgsluice.worker.dead_letters.exclusions import Exclusions
from pgsluice.worker.dead_letters.filter import DiscardingWriter
from pgsluice.worker.sinks.sink import Applied, Lane, Partition
from tests.freed_memory import KEPT_BYTES, keep_freed_memory, resident_bytes
from tests.servers import NatsServer
from tests.waiting import wait_on_loop
from tests.worker.encoded_changes import body_of
from tests.worker.task_receipts import receipts

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)
TABLE = table("t", "id bigint")
APPLIED = Applied(1, 100, 1_000_000, "")
CUTS = [[(2, 6)], [(2, 3), (4, 6)], [(2, 4), (5, 6)], [(2, 5), (6, 6)], [(n, n) for n in range(2, 7)]]
"""The messages after ``APPLIED``, in partitions."""

Sent = tuple[int | None, int | None]
"""The numbers of the transactions that a message names as its own and as before it; None: it names none."""

CHAINED: Sequence[Sent] = [(number, number - 1) for number in range(1, 7)]


@dataclass(frozen=True, slots=True)
class ReceiptPerMessage(DiscardingWriter):
    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        for _ in messages:
            yield b""


def anchor(number: int | None) -> Anchor | None:
    if not number:
        return None if number is None else NO_ANCHOR
    return Anchor(Position(LSN(number * 100), 1), number, number * 1_000_000)


async def publish(server: NatsServer, group: str, sent: Sequence[Sent]) -> None:
    """A message for each, with one change."""
    async with connected(server.settings(), "test") as client:
        stream = ChangeStream(client, GroupNames(group))
        await stream.ensure(SETTINGS)
        for number, (own, before) in enumerate(sent, 1):
            body = body_of(transaction(number * 100, insert(TABLE, b"%d" % number), xid=number, committed_at=number * 1_000_000))
            position = Position(LSN(number * 100), 1)
            headers = MessageHeaders(position, position, LSN(0), number, 0, anchor=anchor(own), after=anchor(before))
            await client.jetstream().publish(stream.subject, body, headers=headers.encode())


def applied_messages(server: NatsServer, group: str, cut: Sequence[tuple[int, int]], writer: DiscardingWriter) -> int:
    """The last one of a batch that begins after the first message, which is applied."""
    task = PartitionTask(server.settings(), group, "w", writer, NEVER_COPIED, Exclusions({}, {}, 1), Transformation())
    ranges = [SequenceRange(Lane.CHANGES, first, last, len(cut)) for first, last in cut]
    return receipts(task, ranges, APPLIED)[-1].last_sequence


@pytest.mark.parametrize("writer", [DiscardingWriter(), ReceiptPerMessage()], ids=["one receipt", "receipt per message"])
def test_a_stream_without_a_break_is_applied_however_it_is_cut(
    nats_server: NatsServer, group: str, writer: DiscardingWriter
) -> None:
    asyncio.run(publish(nats_server, group, CHAINED))
    assert [applied_messages(nats_server, group, cut, writer) for cut in CUTS] == [6] * len(CUTS)


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6])
def test_a_break_is_found_wherever_it_is(nats_server: NatsServer, group: str, at: int) -> None:
    sent = [(own, 17 if own == at else before) for own, before in CHAINED]
    asyncio.run(publish(nats_server, group, sent))
    for cut in CUTS:
        with pytest.raises(TerminalError, match=f"message {at} of the change stream follows the change at 0/6A4:1, but"):
            applied_messages(nats_server, group, cut, DiscardingWriter())


@pytest.mark.parametrize("earlier", [1, 2, 3, 4], ids="{} of an earlier version".format)
def test_messages_of_an_earlier_version_name_none_and_those_after_them_follow_each_other(
    nats_server: NatsServer, group: str, earlier: int
) -> None:
    sent = [(own if own > earlier else None, before if before > earlier else None) for own, before in enumerate(range(6), 1)]
    asyncio.run(publish(nats_server, group, sent))
    assert [applied_messages(nats_server, group, cut, DiscardingWriter()) for cut in CUTS] == [6] * len(CUTS)
    assert [applied_messages(nats_server, group, cut, ReceiptPerMessage()) for cut in CUTS] == [6] * len(CUTS)
    sent[-1] = (6, 17)
    asyncio.run(publish(nats_server, group + "_broken", sent))
    for cut in CUTS:
        with pytest.raises(
            TerminalError, match="message 6 of the change stream follows the change at 0/6A4:1, but the messages before it"
        ):
            applied_messages(nats_server, group + "_broken", cut, DiscardingWriter())


def test_a_task_that_warms_its_process_up_connects_and_gives_memory_back(nats_server: NatsServer, group: str) -> None:
    held = keep_freed_memory()
    before = resident_bytes()
    assert [*WarmUp(nats_server.settings(), group)(0)] == []
    assert before - resident_bytes() > KEPT_BYTES // 2
    assert held
    process_connection(nats_server.settings(), group).close()


@pytest.mark.parametrize(("interval_s", "steps"), [(0.0, 5 + 1), (60.0, 0)], ids=["long", "short"])
def test_a_task_that_takes_long_tells_of_each_message_and_receipt(
    nats_server: NatsServer, group: str, monkeypatch: pytest.MonkeyPatch, interval_s: float, steps: int
) -> None:
    monkeypatch.setattr(task_steps, "TELL_INTERVAL_S", interval_s)
    told: list[None] = []

    async def listen_while_it_runs() -> None:
        async with connected(nats_server.settings(), "test") as client:
            await listen_to_steps(client, GroupNames(group), "w", lambda: told.append(None))
            await client.flush()
            await asyncio.to_thread(applied_messages, nats_server, group, CUTS[0], DiscardingWriter())
            process_connection(nats_server.settings(), group).ask(_flushed)
            await client.flush()
            await wait_on_loop(lambda: len(told) >= steps, what="the steps")

    asyncio.run(publish(nats_server, group, CHAINED))
    asyncio.run(listen_while_it_runs())
    assert len(told) == steps


def test_a_message_that_has_other_rows_than_it_says_is_refused() -> None:
    headers = SnapshotHeaders("s", TABLE.oid, 1, 1, 1, rows=3, range_rows=3, range_bytes=4, is_range_end=True)
    body = CopiedBody(7, headers, b"")
    with pytest.raises(WireError, match=r"message 7 of the snapshot stream claims to have 3 rows of table '.*t', and has 2"):
        body.copied_rows(TABLE, memoryview(b"1\n2\n"))
    assert body.copied_rows(TABLE, memoryview(b"1\n2\n3\n")).rows == 3


async def _flushed(client: Client) -> None:
    await client.flush()
