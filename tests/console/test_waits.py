"""Every command that waits ends when what it waits for can no longer come, and says why; it names whom it waits for until then.

The other side is a record of the state bucket here, as its process writes it; ``tests.end_to_end.test_waits`` has the processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.halt import note_halt
from pgsluice.shared.broker.ledger import Ledger, Phase, Retry, TableRecord
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, GroupRecord, publication_of_worker
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.table_orders import ORDERS, TableOutcome, note_done, note_waiting
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, desired_wish, worker_unit
from pgsluice.shared.broker.worker_records import LeaseRecord, WorkerReport, lease_key, worker_key
from pgsluice.shared.errors import HistoryError, TerminalError, TransientError
from pgsluice.shared.process.pulse import Activity, Pulse
from pgsluice.shared.units.unit_wait import STAND_BY_S
from pgsluice.shared.wire.dead_letter import DeadLetter, now
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.changes_builder import insert, table, transaction
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import DeadlineError, wait_until
from tests.worker.encoded_changes import body_of
from tests.worker.published_stream import STREAM

TABLE = table("t", "id bigint")
LONG = "100"
NAMED = "waiting for processes of the group"

ORDERED_TABLES = {
    f"tables {verb}": ("tables", verb, "t", *more, "--wait")
    for verb, *more in (("add",), ("remove",), ("resync",), ("retry",), ("forget", "--yes"))
}
OF_THE_REPLICATOR = ORDERED_TABLES | {
    "search reindex": ("search", "reindex", "t", "--worker", "letters", "--all-workers", "--wait"),
    "pause --source": ("pause", "--source", "--worker", "resting", "--wait"),
}
OF_A_WORKER = {
    "dead replay": ("letters", ("dead", "replay", "--all", "--wait")),
    "pause": ("pausing", ("pause", "--worker", "pausing", "--wait")),
    "resume": ("resuming", ("resume", "--worker", "resuming", "--wait")),
    "start": ("starting", ("start", "--worker", "starting", "--wait")),
}
OF_ALL_WORKERS = {"pause --table": ("pause", "--table", "t", "--wait")}
EVERY = OF_THE_REPLICATOR | {name: command for name, (_, command) in OF_A_WORKER.items()} | OF_ALL_WORKERS
WORKERS = [worker for worker, _ in OF_A_WORKER.values()]


class WaitedGroup:
    """Its processes were killed: they told of themselves before. A letter of a worker is dead."""

    def __init__(self, nats: NatsServer, name: str) -> None:
        self._nats = nats
        self.name = name
        self.ask(self._make)

    async def _make(self, bucket: StateBucket) -> None:
        await bucket.ensure(STREAM)
        await ChangeStream(bucket.client, bucket.names).ensure(STREAM)
        await bucket.put(REPLICATOR_KEY, {"flushed_lsn": "0/0", "stream_created": "", "stream_sequence": 0})
        await store_tables(bucket, [TABLE], "UTF8")
        for worker in (*WORKERS, "resting"):
            await bucket.put(worker_key(worker), WorkerReport(0, two_lanes=True))
        stream = DeadLetterStream(bucket.client, bucket.names)
        await stream.ensure_like(bucket.names.changes_stream)
        body = body_of(transaction(LSN(1), insert(TABLE, b"1")))
        await stream.publish(DeadLetter("letters", Position(LSN(1), 1), "public.t", "refused", now(), 1, "", 1, body))

    def ask(self, question: Callable[[StateBucket], Coroutine[Any, Any, Any]]) -> Any:
        async def call() -> Any:
            async with connected(self._nats.settings(), "test") as client:
                return await question(StateBucket(client, GroupNames(self.name)))

        return asyncio.run(call())

    def command(self, *arguments: str) -> PgsluiceProcess:
        return PgsluiceProcess(*arguments, config={"group": self.name, "nats-url": self._nats.url})

    @contextmanager
    def waiting(self, commands: Mapping[str, tuple[str, ...]], wait: str = LONG) -> Iterator[dict[str, PgsluiceProcess]]:
        """All of them at once, each from when it has said whom it waits for."""
        with ExitStack() as stack:
            given = {}
            for name, command in commands.items():
                is_duration = command[0] in ("pause", "resume", "stop", "start")
                given[name] = stack.enter_context(self.command(*command, f"{wait}s" if is_duration else wait))
            for process in given.values():
                process.wait_for_log(NAMED)
            yield given

    def end(self, unit: str, error: Exception) -> None:
        """As the unit's process tells of its end."""

        async def tell(bucket: StateBucket) -> None:
            await ProcessReport(unit, Pulse(), lambda: bucket).tell_end(error)

        self.ask(tell)

    def work(self, worker: str) -> None:
        """As a process of the worker tells that it obeys."""

        async def tell(bucket: StateBucket) -> None:
            pulse, unit = Pulse(), worker_unit(worker)
            pulse.activity = Activity.WORKING
            report = ProcessReport(unit, pulse, lambda: bucket)
            report.acknowledged = (await desired_wish(unit).read(bucket)).revision
            await bucket.put(lease_key(worker), LeaseRecord("here", 1))
            await report._tell_news()

        self.ask(tell)

    def run(self, *arguments: str) -> str:
        with self.command(*arguments) as process:
            assert process.wait() == 0, process.log()
            return process.stdout() + process.log()


@pytest.fixture
def waited(nats_server: NatsServer, group: str) -> WaitedGroup:
    return WaitedGroup(nats_server, group)


def ends(processes: dict[str, PgsluiceProcess], *said: str) -> dict[str, int]:
    """The exit code of each, once it has ended; each said all of that."""
    codes = {name: process.wait() for name, process in processes.items()}
    missing = {name: process.log() for name, process in processes.items() if any(text not in process.log() for text in said)}
    assert not missing
    return codes


FAILED = TerminalError("the disk is on fire", "put it out")


def test_commands_that_wait_for_a_replicator_end_when_it_has_failed(waited: WaitedGroup) -> None:
    with waited.waiting(OF_THE_REPLICATOR) as processes:
        waited.end(REPLICATOR_UNIT, FAILED)
        codes = ends(processes, f"the replicator of group '{waited.name}' has failed", "the disk is on fire: put it out")
    assert codes == dict.fromkeys(OF_THE_REPLICATOR, 70)


def test_commands_that_wait_for_a_worker_end_when_it_has_failed(waited: WaitedGroup) -> None:
    commands = {name: command for name, (_, command) in OF_A_WORKER.items()} | OF_ALL_WORKERS
    with waited.waiting(commands) as processes:
        for worker in WORKERS:
            waited.end(worker_unit(worker), FAILED)
        codes = ends(processes, f"of group '{waited.name}' has failed", "the disk is on fire: put it out")
    assert codes == dict.fromkeys(commands, 70)


def test_a_stop_says_that_the_worker_has_ended_in_another_way(waited: WaitedGroup) -> None:
    waited.end(worker_unit("resting"), FAILED)
    with waited.command("stop", "--worker", "resting", "--wait", f"{LONG}s") as process:
        assert process.wait() == 70
        assert "has failed, and has not obeyed: the disk is on fire" in process.log()


def test_a_start_waits_for_the_process_that_a_server_starts_in_the_place_of_one_that_failed(waited: WaitedGroup) -> None:
    waited.end(worker_unit("resting"), FAILED)
    waited.run("stop", "--worker", "resting")
    with waited.waiting({"start": ("start", "--worker", "resting", "--wait")}) as processes:
        assert "resting (failed: the disk is on fire)" in processes["start"].log()
        with pytest.raises(DeadlineError):
            wait_until(lambda: not processes["start"].is_running, deadline_s=STAND_BY_S + 1)
        waited.work("resting")
        assert ends(processes) == {"start": 0}


def test_a_table_is_forgotten_after_workers_one_of_which_has_failed(waited: WaitedGroup) -> None:
    async def wait_for_worker(bucket: StateBucket) -> None:
        [order] = (await ORDERS.load(bucket)).open
        await note_waiting(bucket, order, ("letters",))

    with waited.waiting({"tables forget": EVERY["tables forget"]}) as processes:
        waited.ask(wait_for_worker)
        waited.end(worker_unit("letters"), FAILED)
        assert ends(processes, f"worker 'letters' of group '{waited.name}' has failed") == {"tables forget": 70}


def test_commands_end_when_the_group_is_dropped(waited: WaitedGroup) -> None:
    with waited.waiting(EVERY) as processes:
        waited.run("drop", "--nats-only", "--yes")
        codes = {name: process.wait() for name, process in processes.items()}
        logs = {name: process.log() for name, process in processes.items()}
    assert codes == dict.fromkeys(EVERY, 70)
    assert not {name: log for name, log in logs.items() if "was dropped" not in log and "the dead letters with it" not in log}


def test_commands_end_when_the_worker_is_forgotten(waited: WaitedGroup) -> None:
    commands = {name: command for name, (_, command) in OF_A_WORKER.items()}
    with waited.waiting(commands) as processes:
        for worker in WORKERS:
            waited.run("forget", "--worker", worker, "--yes")
        codes = ends(processes, f"of group '{waited.name}' was forgotten")
    assert codes == dict.fromkeys(commands, 70)


def test_commands_end_when_the_replicator_is_halted(waited: WaitedGroup) -> None:
    with waited.waiting(OF_THE_REPLICATOR) as processes:
        waited.ask(lambda bucket: note_halt(bucket, HistoryError("the source went back", "restore it")))
        codes = ends(processes, "the source went back", "forget --halt")
    assert codes == dict.fromkeys(OF_THE_REPLICATOR, 70)


def test_a_process_that_may_be_started_again_is_waited_for_until_the_deadline_and_named(waited: WaitedGroup) -> None:
    waited.end(REPLICATOR_UNIT, TransientError("the source does not answer", "look there"))
    with waited.waiting(EVERY, wait="2") as processes:
        codes = {name: process.wait() for name, process in processes.items()}
        logs = {name: process.log() for name, process in processes.items()}
    assert codes == dict.fromkeys(EVERY, 75)
    for name in OF_THE_REPLICATOR:
        assert "replicator (failing: the source does not answer)" in logs[name]
    for name, (worker, _) in OF_A_WORKER.items():
        assert f"{worker} (unknown: its process has not reported)" in logs[name]


def test_a_wait_ends_when_somebody_orders_the_opposite(waited: WaitedGroup) -> None:
    waited.end(worker_unit("pausing"), TransientError("the target does not answer", "look there"))
    commands = {name: EVERY[name] for name in ("pause", "pause --table")}
    with waited.waiting(commands) as processes:
        waited.run("resume", "--worker", "pausing")
        waited.run("resume", "--table", "t")
        assert ends(processes, "during the wait") == dict.fromkeys(commands, 70)


class OrderedCopies:
    """A command whose order is carried out, and which waits for the copy of the table."""

    def __init__(self, group: WaitedGroup, process: PgsluiceProcess) -> None:
        self._group = group
        self._process = process
        self._record = TableRecord(TABLE.oid, "public", "t", Phase.INIT, now())

    def carry_out(self) -> None:
        async def done(bucket: StateBucket) -> None:
            await Ledger(bucket).store_table(self._record)
            [order] = (await ORDERS.load(bucket)).open
            await note_done(bucket, order, (TableOutcome("public.t", False, "is copied again"),))

        self._group.ask(done)
        wait_until(lambda: self._process.log().count(NAMED) == 2, what="the wait for the copy")

    def enter(self, phase: Phase, **changes: Any) -> None:
        record = self._record.enter(phase, **changes)
        self._group.ask(lambda bucket: Ledger(bucket).store_table(record))

    def forget(self) -> None:
        self._group.ask(lambda bucket: Ledger(bucket).remove_table(TABLE.oid))

    def end(self, *said: str) -> int:
        code = self._process.wait()
        text = self._process.stdout() + self._process.log()
        assert all(each in text for each in said), text
        return code


@contextmanager
def copying(group: WaitedGroup, name: str, wait: str = LONG) -> Iterator[OrderedCopies]:
    with group.waiting({name: EVERY[name]}, wait) as processes:
        copies = OrderedCopies(group, processes[name])
        copies.carry_out()
        yield copies


@pytest.mark.parametrize("name", ["tables add", "tables resync", "tables retry", "search reindex"])
def test_a_wait_for_a_copy_ends_when_the_replicator_has_failed(waited: WaitedGroup, name: str) -> None:
    with copying(waited, name) as copies:
        waited.end(REPLICATOR_UNIT, FAILED)
        assert copies.end("and the copy is not finished: the disk is on fire") == 70


def test_a_wait_for_a_copy_ends_when_a_person_has_to_act_for_the_table(waited: WaitedGroup) -> None:
    with copying(waited, "tables resync") as copies:
        copies.enter(Phase.ERRORED, error="it may not be read", remedy="GRANT it", retry=Retry.MANUAL)
        assert copies.end("could not be copied: it may not be read: GRANT it", "not copied: public.t") == 70


def test_a_wait_for_a_copy_goes_on_while_the_table_is_tried_again_by_itself(waited: WaitedGroup) -> None:
    with copying(waited, "tables resync") as copies:
        copies.enter(Phase.ERRORED, error="it is locked", remedy="wait", retry=Retry.TIMED, retry_at=now())
        copies.enter(Phase.FINISHED_COPY, rows=3)
        assert copies.end("public.t: 3 rows are copied") == 0


def test_a_wait_for_a_copy_ends_when_the_table_leaves_or_is_forgotten(waited: WaitedGroup) -> None:
    with copying(waited, "tables add") as copies:
        copies.enter(Phase.LEFT)
        assert copies.end("is no longer among the tables of the group") == 70
    with copying(waited, "tables resync") as copies:
        copies.forget()
        assert copies.end("the group knows it no more") == 70


def test_a_copy_that_goes_on_after_the_deadline_is_not_called_done(waited: WaitedGroup) -> None:
    with copying(waited, "tables add", wait="8") as copies:
        assert copies.end("the copy of public.t continues: replicator (unknown") == 75


def test_an_order_about_tables_is_refused_where_no_replicator_carries_it_out(waited: WaitedGroup) -> None:
    publication = publication_of_worker("origin/nats")
    record = GroupRecord(waited.name, "1", 1, "d", publication, 0, "", "", now())
    waited.ask(lambda bucket: bucket.put(GROUP_KEY, record))
    with waited.command("tables", "resync", "t", "--wait", LONG) as process:
        assert process.wait() == 2
        assert "worker 'nats' of group 'origin' publishes group" in process.log()
    assert waited.ask(lambda bucket: ORDERS.load(bucket)).orders == ()
