"""The stdout sink beyond the contract of all sinks: what is on the descriptor and when, and what if nobody reads it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgsluice.shared.broker import bucket
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import Cause, ConsumerGoneError, TerminalError, TransientError
from pgsluice.shared.process.pulse import Pulse, Wait
from pgsluice.testing.batch import STREAM_CREATED, apply, write, write_partition
from pgsluice.testing.changes_builder import copied
from pgsluice.testing.tried_batches import EVENTS, LARGE_NOTE, batch, events, position
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.lines.line_output import RECEIPT_BYTES, WRITE_BYTES
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Partition, Receipt
from pgsluice.worker.sinks.stdout import reader_watch
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.stdout.sink import StdoutSink, StdoutWriter
from tests.servers import NatsServer
from tests.servers.program import REPOSITORY
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings

READER_DEADLINE_S = 30.0

CHANGES = StdoutSinkSettings(line_settings())
CHANGES_AND_TRANSACTIONS = StdoutSinkSettings(line_settings(transactions=True))


@pytest.fixture
def settings(nats_server: NatsServer, group: str) -> WorkerSettings:
    ensure_bucket(nats_server.settings(), group)
    return worker_settings(group, nats_server.settings())


class Pipe:
    """A sink on the writing end of a pipe."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.reading, self.writing = os.pipe()
        self.sink = StdoutSink(settings, CHANGES, descriptor=self.writing)

    def read_to_end(self) -> bytes:
        """Everything written, once nobody can write any more."""
        os.close(self.writing)
        with os.fdopen(self.reading, "rb") as output:
            return output.read()


@pytest.fixture
def pipe(settings: WorkerSettings) -> Iterator[Pipe]:
    pipe = Pipe(settings)
    yield pipe
    pipe.sink.close()


def stored_position(settings: WorkerSettings) -> Applied:
    positions = BucketPositions(settings.nats, settings.group, settings.name)
    try:
        return positions.load()
    finally:
        positions.close()


def test_lines_are_on_the_descriptor_when_commit_returns(pipe: Pipe, settings: WorkerSettings) -> None:
    pipe.sink.open()
    apply(pipe.sink, batch([1, 2], [3]))
    assert [json.loads(line)["after"]["id"] for line in os.read(pipe.reading, 65_536).splitlines()] == events(3)
    assert stored_position(settings) == position(3)


def test_transactions_are_marked_when_asked_for(settings: WorkerSettings) -> None:
    (receipt,) = write_partition(StdoutSink(settings, CHANGES_AND_TRANSACTIONS).writer(), batch([1])[0])
    operations = [json.loads(line)["operation"] for line in receipt.body.splitlines()]
    assert operations == ["BEGIN", "INSERT", "INSERT", "COMMIT"]


def test_a_receipt_stays_near_its_bound_and_holds_whole_messages() -> None:
    (messages,) = batch(range(1, 11), note=b"x" * 200_000)
    receipts = write_partition(StdoutWriter(LineEncoding()), messages)
    assert len(receipts) > 1
    largest_message = 2 * (200_000 + 1_000)
    assert all(len(receipt.body) < RECEIPT_BYTES + largest_message for receipt in receipts)
    ids = [json.loads(line)["after"]["id"] for receipt in receipts for line in receipt.body.splitlines()]
    assert ids == events(10)


def test_a_partition_that_fills_its_last_receipt_has_no_empty_one_behind_it() -> None:
    receipts = write_partition(StdoutWriter(LineEncoding()), batch([1], note=b"x" * RECEIPT_BYTES)[0])
    assert len(receipts) == 1


def test_the_position_does_not_move_before_a_slow_reader_has_taken_the_lines(pipe: Pipe, settings: WorkerSettings) -> None:
    pipe.sink.open()
    committing = threading.Thread(target=apply, args=(pipe.sink, batch([1], note=b"x" * 1_000_000)), daemon=True)
    committing.start()
    taken = os.read(pipe.reading, 1)
    assert stored_position(settings) == NOTHING_APPLIED
    while taken.count(b"\n") < len(events(1)):
        taken += os.read(pipe.reading, 65_536)
    committing.join(READER_DEADLINE_S)
    assert not committing.is_alive()
    assert stored_position(settings) == position(1)


def test_a_reader_that_takes_nothing_is_waited_for_and_others_can_see_it(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_watch, "PATIENCE_S", 0.1)
    pulse = Pulse()
    pipe.sink.report_to(pulse)
    pipe.sink.open()
    size = 100 * WRITE_BYTES
    committing = threading.Thread(target=apply, args=(pipe.sink, batch([1], note=b"x" * size)), daemon=True)
    committing.start()

    def waiting() -> Wait | None:
        pipe.sink.tick()
        return pulse.wait

    wait = wait_until(waiting, what="a wait for the reader")
    assert (wait.cause, wait.next_attempt_at) == (Cause.TARGET, None)
    assert "reader of standard output takes no more lines" in wait.reason
    moved_at = pulse.progressed_at
    read = read_lines(pipe.reading, 1)
    wait_until(lambda: pulse.progressed_at > moved_at, what="a step")
    assert pulse.wait is None
    assert wait_until(waiting, what="another wait").since > wait.since
    read += read_lines(pipe.reading, len(events(1)) - 1)
    committing.join(READER_DEADLINE_S)
    assert read.count(b"\n") == len(events(1))
    assert (pulse.wait, committing.is_alive()) == (None, False)


def read_lines(descriptor: int, lines: int) -> bytes:
    taken = b""
    while taken.count(b"\n") < lines:
        taken += os.read(descriptor, 65_536)
    return taken


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    pipe.sink.open()
    committing = threading.Thread(target=apply, args=(pipe.sink, batch([1], note=b"x" * 1_000_000)), daemon=True)
    committing.start()
    taken = b""
    while taken.count(b"\n") < len(events(1)):
        taken += os.read(pipe.reading, 65_536)
    committing.join(READER_DEADLINE_S)
    assert [json.loads(line)["after"]["id"] for line in taken.splitlines()] == events(1)


def test_a_reader_that_is_gone_stops_the_worker_and_nothing_is_acknowledged(pipe: Pipe, settings: WorkerSettings) -> None:
    pipe.sink.open()
    apply(pipe.sink, batch([1]))
    os.close(pipe.reading)
    with pytest.raises(ConsumerGoneError, match="reader of standard output is gone") as raised:
        apply(pipe.sink, batch([2]))
    assert raised.value.exit_code == 75
    assert stored_position(settings) == position(1)


def test_an_output_that_is_full_stops_the_worker(settings: WorkerSettings) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    sink = StdoutSink(settings, CHANGES, descriptor=full)
    sink.open()
    with pytest.raises(TerminalError, match="No space left on device"):
        apply(sink, batch([1]))
    sink.close()
    os.close(full)
    assert stored_position(settings) == NOTHING_APPLIED


def test_a_batch_that_is_tried_again_is_printed_once(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker dies between the lines and the position; the worker tries the batch again until it is back."""
    monkeypatch.setattr(bucket, "REQUEST_TIMEOUT_S", 1.0)
    with NatsServer() as server:
        ensure_bucket(server.settings(), group)
        pipe = Pipe(worker_settings(group, server.settings()))
        pipe.sink.open()
        apply(pipe.sink, batch([1]))
        server.kill()
        with pytest.raises(TransientError):
            apply(pipe.sink, batch([2]))
        server.start()
        assert wait_until(lambda: try_again(pipe.sink), what="commit after the broker's return") == position(2)
        pipe.sink.close()
        output = pipe.read_to_end()
    assert [json.loads(line)["after"]["id"] for line in output.splitlines()] == events(2)


def try_again(sink: StdoutSink) -> Applied | None:
    try:
        return apply(sink, batch([2]))
    except TransientError:
        return None


PRINT_RECEIPTS = """
import pickle, sys
from pgsluice.worker.sinks.stdout import reader_watch
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.stdout.sink import StdoutSink
from tests.worker.sinks.line_settings import line_settings
settings, receipts, stream_created = pickle.load(sys.stdin.buffer)
sink = StdoutSink(settings, StdoutSinkSettings(line_settings()))
sink.open()
sink.commit(receipts, stream_created)
sink.close()
"""


def print_in_a_process(settings: WorkerSettings, receipts: list[Receipt]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", PRINT_RECEIPTS], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps((settings, receipts, STREAM_CREATED)))
    child.stdin.close()
    return child


def test_a_process_killed_between_lines_and_position_prints_them_again(settings: WorkerSettings) -> None:
    """It is killed while it hangs in the second line, because nobody reads that."""
    receipts = write(StdoutSink(settings, CHANGES), batch([1], [2], note=b"x" * 100_000))
    printed = []
    with print_in_a_process(settings, receipts) as child:
        assert child.stdout is not None
        printed.append(child.stdout.readline())
        child.kill()
    assert stored_position(settings) == NOTHING_APPLIED
    with print_in_a_process(settings, receipts) as child:
        assert child.stdout is not None
        printed += child.stdout.readlines()
    assert child.returncode == 0
    assert [json.loads(line)["after"]["id"] for line in printed] == [events(1)[0], *events(2)]
    assert stored_position(settings) == position(2)


def test_a_receipt_does_not_end_inside_a_message_that_goes_to_several_tables() -> None:
    archive = replace(EVENTS, schema="archive", origin=(EVENTS.schema, EVENTS.name))
    rows = [(b"1", LARGE_NOTE)] * (RECEIPT_BYTES // len(LARGE_NOTE) + 1)
    both = [replace(copied(1, EVENTS, *rows), more_follow=True), copied(1, archive, *rows)]
    bodies = list(StdoutWriter(LineEncoding()).write_copied(Partition(1, 2), [*both, copied(2, EVENTS, (b"2", b"n"))]))
    assert [{json.loads(line)["schema"] for line in body.splitlines()} for body in bodies] == [{"public", "archive"}, {"public"}]
