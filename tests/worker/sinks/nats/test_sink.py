"""What readers of the target stream see, and what becomes of others who write it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import nats
import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import Stream, StreamState
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.batch import STREAM_CREATED, Batch, apply, apply_copied, write
from pgsluice.testing.changes_builder import delete, insert, message, message_of, table, transaction, truncate, update
from pgsluice.testing.changes_contract import broken_off
from pgsluice.testing.tried_batches import EVENTS, LARGE_NOTE, batch, copied_batch, position
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.nats.sink import NatsSink
from pgsluice.worker.sinks.nats.target_stream import TargetStream
from pgsluice.worker.sinks.nats.whole_transactions import UNIT_MESSAGES
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.nats.target import NatsDestination, nats_settings
from tests.worker.sinks.settings import worker_settings

ORDERS = table("shop.order.items", "id bigint", "note text")


@contextmanager
def opened(destination: NatsDestination) -> Iterator[NatsSink]:
    sink = destination.new_sink()
    try:
        sink.open()
        yield sink
    finally:
        sink.close()


@pytest.fixture
def destination(nats_server: NatsServer, group: str) -> NatsDestination:
    return NatsDestination(nats_server.settings(), group)


@pytest.fixture
def sink(destination: NatsDestination) -> Iterator[NatsSink]:
    with opened(destination) as sink:
        yield sink


def large(first: int, count: int) -> Batch:
    """One transaction of so many events, in messages of 400."""
    messages = []
    for number, start in enumerate(range(0, count, 400), 1):
        changes = [insert(EVENTS, b"%d" % (first + i), b"n") for i in range(start, min(start + 400, count))]
        is_last = start + 400 >= count
        one = transaction(7000, *changes, committed_at=5, first_ordinal=start + 1, commits=is_last)
        messages.append(message_of(number, one))
    return [messages]


def publish(server: NatsServer, subject: str, data: bytes, headers: dict[str, str]) -> None:
    async def send() -> None:
        client = await nats.connect(server.url)
        await client.jetstream().publish(subject, data, headers=headers)
        await client.close()

    asyncio.run(send())


def test_subjects_name_table_and_operation_with_escaped_tokens(destination: NatsDestination, sink: NatsSink) -> None:
    rows = replace(ORDERS, schema="shop", name="order.items")
    apply(
        sink,
        [[message(1, insert(rows, b"1", b"a"), update(rows, b"1", b"b"), delete(rows, b"1", None), truncate(rows))]],
    )
    stream = destination.reader.name
    subjects = [each.headers["Nats-Subject"] for each in destination.reader.messages()]
    assert subjects == [f"{stream}.shop.order%2Eitems.{each}" for each in ("insert", "update", "delete", "truncate")]
    assert [each.headers["Nats-Msg-Id"] for each in destination.reader.messages()] == [f"0/3E8:{n}" for n in range(1, 5)]


def test_whole_transactions_are_one_atomic_batch(destination: NatsDestination, sink: NatsSink) -> None:
    apply(sink, batch(range(1, 300)))
    stored = destination.reader.messages()
    assert len({each.headers["Nats-Batch-Id"] for each in stored}) == 1
    assert [each.headers.get("Nats-Batch-Commit") for each in stored].count("1") == 1


def test_more_than_a_batch_holds_is_cut_between_transactions(destination: NatsDestination, sink: NatsSink) -> None:
    apply(sink, batch(range(1, UNIT_MESSAGES)))
    stored = destination.reader.messages()
    assert len(stored) == 2 * (UNIT_MESSAGES - 1)
    batches = dict.fromkeys(each.headers["Nats-Batch-Id"] for each in stored)
    assert len(batches) == 2
    ids_of = {each: [m.headers["Nats-Msg-Id"] for m in stored if m.headers["Nats-Batch-Id"] == each] for each in batches}
    for ids in ids_of.values():
        assert len(ids) % 2 == 0, "both events of each transaction"
    assert not [each for each in stored if "Pgsluice-Part" in each.headers]


def test_a_larger_transaction_is_marked_part_by_part(destination: NatsDestination, sink: NatsSink) -> None:
    apply(sink, large(1, 2 * UNIT_MESSAGES + 10))
    parts = [each.headers["Pgsluice-Part"] for each in destination.reader.messages()]
    assert parts == ["1"] * UNIT_MESSAGES + ["2"] * UNIT_MESSAGES + ["3/3"] * 10


def test_a_batch_that_broke_off_goes_on_behind_what_is_published(destination: NatsDestination, sink: NatsSink) -> None:
    """In the middle of a transaction too; parts are counted on."""
    changes = large(1, 3 * UNIT_MESSAGES)
    with pytest.raises(TransientError):
        sink.commit(broken_off([*write(sink, changes), *write(sink, batch([9]))]), STREAM_CREATED)
    sink.close()
    assert len(destination.reader.messages()) == UNIT_MESSAGES, "what was under way is stored when the sink is closed"
    with opened(destination) as successor:
        assert successor.open().sequence == 0
        apply(successor, changes)
    stored = destination.reader.messages()
    assert [each.headers["Nats-Msg-Id"] for each in stored] == [f"0/1B58:{n}" for n in range(1, 3 * UNIT_MESSAGES + 1)]
    assert stored[-1].headers["Pgsluice-Part"] == "3/3"


def test_what_tasks_wrote_before_a_batch_broke_off_is_written_again(destination: NatsDestination, sink: NatsSink) -> None:
    changes = large(1, 3 * UNIT_MESSAGES)
    receipts = write(sink, changes)
    with pytest.raises(TransientError):
        sink.commit(broken_off([*receipts, *write(sink, batch([9]))]), STREAM_CREATED)
    with pytest.raises(WriteAgain):
        sink.commit(receipts, STREAM_CREATED)
    apply(sink, changes)
    ids = [each.headers["Nats-Msg-Id"] for each in destination.reader.messages()]
    assert ids == [f"0/1B58:{n}" for n in range(1, 3 * UNIT_MESSAGES + 1)]


def test_a_batch_that_broke_off_goes_on_when_what_is_published_of_it_has_expired(nats_server: NatsServer, group: str) -> None:
    """The worker was away for longer than messages stay."""
    changes = large(1, 3 * UNIT_MESSAGES)
    expiring = NatsDestination(nats_server.settings(), group, max_age_s=1.0)
    with opened(expiring) as sink, pytest.raises(TransientError):
        sink.commit(broken_off([*write(sink, changes), *write(sink, batch([9]))]), STREAM_CREATED)
    wait_until(lambda: not expiring.reader.messages(), deadline_s=60, what="an empty stream but for the position")
    lasting = NatsDestination(nats_server.settings(), group)
    with opened(lasting) as successor:
        apply(successor, changes)
    stored = lasting.reader.messages()
    assert [each.headers["Nats-Msg-Id"] for each in stored] == [
        f"0/1B58:{n}" for n in range(UNIT_MESSAGES + 1, 3 * UNIT_MESSAGES + 1)
    ]
    assert [each.headers["Pgsluice-Part"] for each in stored] == ["2"] * UNIT_MESSAGES + ["3/3"] * UNIT_MESSAGES


def test_what_follows_the_last_part_is_in_no_transaction_of_parts(destination: NatsDestination, sink: NatsSink) -> None:
    apply(sink, large(1, UNIT_MESSAGES + 10))
    apply(sink, batch([8]))
    parts = [each.headers.get("Pgsluice-Part") for each in destination.reader.messages()]
    assert parts == ["1"] * UNIT_MESSAGES + ["2/2"] * 10 + [None] * 2


def test_copied_rows_that_come_between_parts_are_in_none_of_them(destination: NatsDestination, sink: NatsSink) -> None:
    """As when a worker dies in a large transaction, and a table was added before it is started again."""
    changes = large(1, 3 * UNIT_MESSAGES)
    with pytest.raises(TransientError):
        sink.commit(broken_off([*write(sink, changes), *write(sink, batch([9]))]), STREAM_CREATED)
    sink.close()
    with opened(destination) as successor:
        apply_copied(successor, copied_batch([1]))
        apply(successor, changes)
    stored = destination.reader.messages()
    copied = [each for each in stored if each.headers["Nats-Msg-Id"].startswith("copy:")]
    assert [each.headers.get("Pgsluice-Part") for each in copied] == [None, None]
    assert stored[0] not in copied
    assert stored[-1] not in copied
    parts = [each.headers["Pgsluice-Part"] for each in stored if each not in copied]
    assert parts == ["1"] * UNIT_MESSAGES + ["2"] * UNIT_MESSAGES + ["3/3"] * UNIT_MESSAGES


def test_a_line_that_is_too_large_is_rejected_and_nothing_of_its_row_goes_before_it(
    destination: NatsDestination, sink: NatsSink
) -> None:
    too_large = b"x" * 2_000_000
    with pytest.raises(RejectedChanges) as rejected:
        apply(sink, [[message(1, insert(ORDERS, b"1", too_large)), message(2, update(ORDERS, b"1", b"small"))]])
    (rejection,) = rejected.value.rejections
    assert rejection.position == Position(LSN(1000), 1)
    assert "is larger than a message of NATS" in rejection.reason
    assert destination.reader.messages() == []


def test_a_line_that_is_too_large_goes_in_chunks_when_asked(nats_server: NatsServer, group: str) -> None:
    destination = NatsDestination(nats_server.settings(), group, large_messages="chunks")
    with opened(destination) as sink:
        apply(sink, [[message(1, insert(ORDERS, b"1", b"x" * 2_500_000), insert(ORDERS, b"2", b"n"))]])
    stored = destination.reader.messages()
    assert [each.headers.get("Pgsluice-Chunk") for each in stored] == ["1/3", "2/3", "3/3", None]
    assert len({each.headers["Nats-Batch-Id"] for each in stored}) == 1
    first, second = destination.reader.lines()
    assert (len(first["after"]["note"]), second["after"]["id"]) == (2_500_000, 2)


def test_a_changed_key_of_debezium_is_two_messages(nats_server: NatsServer, group: str) -> None:
    destination = NatsDestination(nats_server.settings(), group, lines=line_settings(shape="debezium"))
    with opened(destination) as sink:
        apply(sink, [[message(1, update(ORDERS, b"2", b"n", old=(b"1", None)))]])
    stored = destination.reader.messages()
    assert [each.headers["Nats-Subject"].rpartition(".")[2] for each in stored] == ["delete", "insert"]
    assert [each.headers["Nats-Msg-Id"] for each in stored] == ["0/3E8:1", "0/3E8:1/1"]


def test_somebody_elses_message_stops_the_worker(destination: NatsDestination, sink: NatsSink, nats_server: NatsServer) -> None:
    apply(sink, batch([1]))
    publish(nats_server, f"{destination.reader.name}.a.b.insert", b"{}", {})
    with pytest.raises(TerminalError, match="something else writes into stream"):
        apply(sink, batch([2]))
    sink.close()
    with pytest.raises(TerminalError, match="something else writes into stream"), opened(destination):
        pass


def test_the_same_id_with_another_payload_stops_the_worker(
    destination: NatsDestination, sink: NatsSink, nats_server: NatsServer
) -> None:
    apply(sink, batch([1]))
    publish(nats_server, f"{destination.reader.name}.public.events.insert", b"{}", {"Nats-Msg-Id": "0/7D0:2"})
    with pytest.raises(TerminalError, match=r"holds another message under the id 0/7D0:2"):
        apply(sink, batch([2]))
    assert len(destination.reader.messages()) == 3


def test_a_server_that_is_killed_and_comes_back_holds_each_message_once(group: str) -> None:
    with NatsServer() as server:
        destination = NatsDestination(server.settings(), group)
        with opened(destination) as sink:
            apply(sink, batch([1]))
            server.kill()
            with pytest.raises(TransientError):
                apply(sink, batch([2]))
            server.start()
            while True:
                try:
                    assert apply(sink, batch([2])) == position(2)
                    break
                except TransientError:
                    continue
            assert [each.headers["Nats-Msg-Id"] for each in destination.reader.messages()] == [
                "0/3E8:1",
                "0/3E8:2",
                "0/7D0:1",
                "0/7D0:2",
            ]


def test_a_full_stream_is_waited_for_and_nothing_counts_as_applied_meanwhile(nats_server: NatsServer, group: str) -> None:
    small = NatsDestination(nats_server.settings(), group, max_bytes=1 << 20)
    with opened(small) as sink:
        apply(sink, batch([1]))
        for _ in range(2):
            with pytest.raises(TransientError, match="is full"):
                apply(sink, batch([2, 3, 4], note=LARGE_NOTE))
        assert len(small.reader.messages()) == 2
    larger = NatsDestination(nats_server.settings(), group, max_bytes=1 << 30)
    with opened(larger) as sink:
        assert apply(sink, batch([2, 3, 4], note=LARGE_NOTE)) == position(4)
    assert len(larger.reader.messages()) == 8


def test_a_stream_that_somebody_made_is_not_touched(nats_server: NatsServer, group: str) -> None:
    async def make() -> None:
        client = await nats.connect(nats_server.url)
        await client.jetstream().add_stream(name=f"{group}-out", subjects=[f"{group}.theirs"])
        await client.close()

    async def subjects() -> list[str] | None:
        client = await nats.connect(nats_server.url)
        found = await client.jetstream().stream_info(f"{group}-out")
        await client.close()
        return found.config.subjects

    asyncio.run(make())
    destination = NatsDestination(nats_server.settings(), group)
    with pytest.raises(TerminalError, match="exists, and pgsluice did not make it"), opened(destination):
        pass
    assert asyncio.run(subjects()) == [f"{group}.theirs"]


def test_what_another_process_stores_while_a_sink_opens_is_not_overlooked(
    destination: NatsDestination, sink: NatsSink, nats_server: NatsServer, group: str
) -> None:
    class Interrupted(NatsSink):
        """Between its look at the position and the rest of ``open`` another process applies a batch."""

        async def _begun(self, stream: TargetStream) -> StreamState:
            await asyncio.to_thread(apply, sink, batch([2]))
            return await super()._begun(stream)

    apply(sink, batch([1]))
    interrupted = Interrupted(worker_settings(group, nats_server.settings()), nats_settings(destination.reader.name))
    try:
        assert interrupted.open() == position(1)
        with pytest.raises(TerminalError, match="another process moved the position"):
            apply(interrupted, batch([2]))
    finally:
        interrupted.close()
    assert len(destination.reader.messages()) == 4


def test_a_position_that_somebody_removed_stops_the_worker_and_it_says_what_a_start_needs(
    destination: NatsDestination, sink: NatsSink, nats_server: NatsServer
) -> None:
    """With the newest messages, or with the stream under a running worker."""

    async def remove(*, all_of_it: bool) -> None:
        async with connected(nats_server.settings(), "test") as client:
            stream = Stream(client, destination.reader.name, "")
            if all_of_it:
                await stream.delete()
            else:
                await stream.purge_up_to(destination_end)

    apply(sink, batch([1]))
    destination_end = destination.reader.last_sequence()
    asyncio.run(remove(all_of_it=False))
    with pytest.raises(TerminalError, match=r"has lost its last message.*'pgsluice forget --worker sink'"), opened(destination):
        pass
    asyncio.run(remove(all_of_it=True))
    with pytest.raises(TransientError):
        apply(sink, batch([2]))
    with pytest.raises(TerminalError, match=r"is gone.*'pgsluice forget --worker sink'"):
        apply(sink, batch([2]))


def test_a_stream_of_another_worker_is_not_written(destination: NatsDestination, sink: NatsSink, nats_server: NatsServer) -> None:
    apply(sink, batch([1]))
    settings = worker_settings("another", nats_server.settings())
    other = NatsSink(settings, nats_settings(destination.reader.name))
    try:
        with pytest.raises(TerminalError, match=r"belongs to worker '.*/sink', not to 'another/sink'"):
            other.open()
    finally:
        other.close()
