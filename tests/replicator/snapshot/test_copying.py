"""A schedule is carried out whatever single attempts come to: a table in trouble never stops the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgsluice.replicator.snapshot import copying
from pgsluice.replicator.snapshot.copying import MOST_FAILURES, Copying
from pgsluice.replicator.snapshot.orders import RangeOrder, RangeOutcome, Verdict
from pgsluice.replicator.snapshot.schedule import Schedule
from pgsluice.replicator.snapshot.table_book import TableBook
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect
from pgsluice.shared.broker.ledger import Ledger, Phase, TableRecord, now
from pgsluice.shared.config.settings import StreamSettings
from pgsluice.shared.errors import SnapshotGoneError, TerminalError, TransientError
from pgsluice.shared.wire.names import GroupNames
from tests.replicator.snapshot.conftest import page_range
from tests.servers import NatsServer

RANGES = 3
FULL = 1 << 20


class ScriptedJob:
    """Copies nothing; the first attempts at a range come to the verdicts that were asked for, the others to DONE."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[int, int], list[Verdict]] = {}
        self.attempts: Counter[tuple[int, int]] = Counter()

    def script(self, oid: int, number: int, *verdicts: Verdict) -> None:
        self._verdicts[oid, number] = list(verdicts)

    def __call__(self, ranges: Sequence[RangeOrder]) -> list[RangeOutcome]:
        return [self._outcome(order) for order in ranges]

    def _outcome(self, order: RangeOrder) -> RangeOutcome:
        key = order.pages.table_oid, order.pages.number
        self.attempts[key] += 1
        verdicts = self._verdicts.get(key, [])
        verdict = verdicts.pop(0) if verdicts else Verdict.DONE
        if verdict is Verdict.DONE:
            return RangeOutcome(order.pages, verdict, rows=10, bytes=100, last_sequence=order.pages.number)
        kind = TerminalError if verdict is Verdict.REFUSED else TransientError
        return RangeOutcome(order.pages, verdict, error=kind(f"{verdict.value} on purpose", "do something"))


@pytest.fixture
async def ledger(group: str, nats_server: NatsServer) -> AsyncIterator[Ledger]:
    client = await connect(nats_server.settings(), "test")
    bucket = StateBucket(client, GroupNames(group))
    await bucket.ensure(StreamSettings(1, (), 1 << 20, 60.0))
    yield Ledger(bucket)
    await client.close()


@pytest.fixture
def book(ledger: Ledger) -> TableBook:
    records = [
        TableRecord(oid, "public", f"t{oid}", Phase.DATA_SYNC, now(), "s", "0/1", ranges=RANGES, bytes_total=RANGES * FULL)
        for oid in (1, 2)
    ]
    return TableBook(ledger, records)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "FIRST_PAUSE_S", 0.001)


async def carry_out(job: ScriptedJob, book: TableBook) -> Copying:
    tables = [[RangeOrder(page_range(oid, number, FULL), 1, b"") for number in range(1, RANGES + 1)] for oid in (1, 2)]
    with ThreadPoolExecutor(4) as threads:
        run = Copying(Schedule(tables, workers_per_table=2, range_bytes=FULL), job, 3, threads, book)
        await run.run()
    return run


def phases(book: TableBook) -> dict[int, Phase]:
    return {record.oid: record.phase for record in book.records}


async def test_every_range_is_copied_and_counted_once(book: TableBook, ledger: Ledger) -> None:
    job = ScriptedJob()
    await carry_out(job, book)
    assert set(job.attempts.values()) == {1}
    assert phases(book) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}
    assert [(record.rows, record.bytes, record.ranges_done) for record in book.records] == [(30, 300, 3)] * 2
    await book.write()
    assert (await ledger.load()).tables == {record.oid: record for record in book.records}


async def test_a_range_that_fails_is_tried_again(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 2, *[Verdict.FAILED] * (MOST_FAILURES - 1))
    await carry_out(job, book)
    assert job.attempts[1, 2] == MOST_FAILURES
    assert phases(book) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}


async def test_a_range_that_keeps_failing_gives_up_its_table_only(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 2, *[Verdict.FAILED] * 10)
    await carry_out(job, book)
    assert job.attempts[1, 2] == MOST_FAILURES
    assert phases(book) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}
    [errored] = book.errored
    assert (errored.error, errored.remedy) == (
        "failed on purpose",
        "do something; then start the replicator with --retry-errored",
    )


async def test_a_refused_range_gives_up_its_table_at_once(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 1, Verdict.REFUSED)
    await carry_out(job, book)
    assert job.attempts[1, 1] == 1
    assert phases(book) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}


async def test_an_outage_is_waited_for_however_often(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 1, *[Verdict.UNAVAILABLE] * (2 * MOST_FAILURES))
    await carry_out(job, book)
    assert job.attempts[1, 1] == 2 * MOST_FAILURES + 1
    assert phases(book) == {1: Phase.FINISHED_COPY, 2: Phase.FINISHED_COPY}


async def test_a_rewritten_table_waits_for_another_snapshot_and_the_others_finish(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 1, Verdict.REWRITTEN)
    run = await carry_out(job, book)
    assert run.rewritten == {1}
    assert phases(book) == {1: Phase.DATA_SYNC, 2: Phase.FINISHED_COPY}


async def test_what_other_ranges_of_a_table_that_was_given_up_come_to_changes_nothing(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 1, Verdict.REFUSED)
    for number in (2, 3):
        job.script(1, number, Verdict.UNAVAILABLE, Verdict.REWRITTEN)
    run = await carry_out(job, book)
    assert phases(book) == {1: Phase.ERRORED, 2: Phase.FINISHED_COPY}
    assert run.rewritten == set()
    assert run.borders.removable(applied=RANGES) == RANGES


async def test_a_dead_snapshot_ends_it(book: TableBook) -> None:
    job = ScriptedJob()
    job.script(1, 1, Verdict.SNAPSHOT_GONE)
    with pytest.raises(SnapshotGoneError):
        await carry_out(job, book)
    assert Phase.ERRORED not in phases(book).values()
