"""What a running replicator shows, asked over HTTP, with a real source and broker; and that none of its tasks dies alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from pgsluice.replicator import replicator, session
from pgsluice.replicator.membership.live_membership import LiveMembership
from pgsluice.replicator.metrics.group_watch import GroupWatch
from pgsluice.replicator.metrics.source_watch import SourceWatch
from pgsluice.replicator.progress import Recorder
from pgsluice.replicator.publisher import Publisher
from pgsluice.replicator.receiver import Feedback
from pgsluice.replicator.replicator import Replicator
from pgsluice.shared.alerts.alert_watch import AlertWatch
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.errors import TaskEndedError
from pgsluice.shared.metrics import asked_looks, health
from pgsluice.shared.metrics.declared_metrics import METRICS, SLOT_SAFE_WAL_BYTES
from pgsluice.shared.metrics.metric import Shown
from pgsluice.shared.units.desired_state import DesiredState
from tests.alerting import alerts_to
from tests.endpoints import ANY_PORT, NO_METRICS, ask, not_shown, scraped
from tests.misses import no_misses
from tests.replicated_group import Group
from tests.servers import NatsServer
from tests.waiting import wait_until

WITHOUT_A_COPY = {metric.name for metric in METRICS if metric.name.startswith("pgsluice_copy_")}
"""What is not shown while none is under way."""

NOBODY = "http://127.0.0.1:9/"


class Running:
    """A replicator that runs in a thread until it is stopped."""

    def __init__(self, replicator: Replicator, ended: Future[None], stop: threading.Event) -> None:
        self.replicator = replicator
        self.ended = ended
        self._stop = stop

    @property
    def address(self) -> str:
        return wait_until(lambda: self.replicator._vitals._outputs.url or self._failed(), what="endpoints")

    def _failed(self) -> str:
        if self.ended.done():
            self.ended.result()
        return ""

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def running(group: Group, **settings: object) -> Iterator[Running]:
    stop, made, pool = threading.Event(), Future[Replicator](), ThreadPoolExecutor(1)

    async def replicate() -> None:
        replicator = Replicator(group.settings(**({"until_lsn": "", "metrics": ANY_PORT} | settings)))
        made.set_result(replicator)
        stopping = asyncio.ensure_future(asyncio.to_thread(stop.wait))
        stopping.add_done_callback(lambda _: replicator.request_stop())
        try:
            await replicator.run()
        finally:
            stop.set()
            await stopping
            await replicator.close()

    ended = pool.submit(asyncio.run, replicate())
    found = Running(made.result(30), ended, stop)
    try:
        yield found
    finally:
        stop.set()
        pool.shutdown()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked up is looked up for each who asks."""
    monkeypatch.setattr(asked_looks, "FRESH_S", 0.0)


def test_a_replicator_shows_its_slot_its_stream_and_what_it_published(replication: Group, soon: None) -> None:
    with running(replication) as process:
        address = process.address
        wait_until(lambda: ask(address, "/readyz").status == 200, what="a ready replicator")
        replication.source.execute("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 100) n")
        wait_until(lambda: scraped(address)["pgsluice_published_changes_total"] == {(): 100}, what="published changes")
        wait_until(lambda: scraped(address).get("pgsluice_source_lag_seconds") == {(): 0}, what="the end of the source")
        wait_until(lambda: scraped(address).get("pgsluice_stream_messages", {}).get(("changes",)), what="the stream")

        wait_until(lambda: scraped(address).get("pgsluice_slot_active") == {(): 1}, what="the slot")
        found = scraped(address)
        assert found["pgsluice_slot_wal_status"] == {("reserved",): 1, ("extended",): 0, ("unreserved",): 0, ("lost",): 0}
        assert found["pgsluice_slot_retained_wal_bytes"][()] >= found["pgsluice_slot_lag_bytes"][()] >= 0
        assert found["pgsluice_slot_confirmed_lsn"][()] > 0
        assert found["pgsluice_source_oldest_transaction_seconds"] == {(): 0}
        assert found["pgsluice_publish_seconds_count"][()] == found["pgsluice_published_messages_total"][()] > 0
        assert found["pgsluice_stream_max_bytes"]["changes",] == 1 << 30
        assert found["pgsluice_reconnects_total"] == {("source",): 0, ("nats",): 0}
        wait_until(lambda: "pgsluice_unit_silence_seconds" in scraped(address), what="the record of the process")
        assert scraped(address)["pgsluice_desired"]["running", "replicator"] == 1
        wait_until(lambda: scraped(address)["pgsluice_state"]["running", "replicator"] == 1, what="a state")
        expected = WITHOUT_A_COPY | {SLOT_SAFE_WAL_BYTES.name}
        no_misses(not_shown(address, Shown.REPLICATOR) ^ expected, "a metric that a scrape lacks, or has without its fact")

        with replication.source.connect() as other, other.transaction():
            other.execute("INSERT INTO t VALUES (1000, 'open')")
            wait_until(lambda: scraped(address)["pgsluice_source_oldest_transaction_seconds"][()] > 0, what="an open transaction")
        process.stop()
        process.ended.result(30)
    with pytest.raises(OSError, match="refused"):
        ask(address, "/healthz")


def test_a_replicator_whose_broker_is_frozen_is_ill_while_it_has_something_to_publish(
    replication: Group, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STILL_S", 2.0)
    with NatsServer() as nats, running(Group(replication.name, replication.source, nats.settings())) as process:
        address = process.address
        wait_until(lambda: ask(address, "/readyz").status == 200, what="a ready replicator")
        nats.pause()
        try:
            replication.source.execute("INSERT INTO t VALUES (1, 'a')")
            wait_until(lambda: ask(address, "/healthz").status == 503, what="an ill replicator")
            assert scraped(address)["pgsluice_published_changes_total"] == {(): 1}
            wait_until(lambda: not ask(address, "/readyz").content["nats"], what="a replicator without a broker")
        finally:
            nats.resume()
        wait_until(lambda: ask(address, "/healthz").status == 200, what="a healthy replicator")
        wait_until(lambda: ask(address, "/readyz").status == 200, what="a replicator that is ready again")
        process.stop()
        process.ended.result(30)


async def die() -> None:
    raise ValueError("hunter2")


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (Publisher, "run", "publishing"),
        (Feedback, "run", "feedback to the source"),
        (Recorder, "run", "the record of progress"),
        (session, "run_retention", "retention"),
        (LiveMembership, "run", "the watch over tables"),
        (SourceWatch, "run", "the watch for metrics"),
        (GroupWatch, "run", "the watch for metrics"),
        (ProcessReport, "run", "the report of this process"),
        (DesiredState, "follow", "the check of the desired state"),
        (AlertWatch, "run", "the alerts"),
        (replicator, "tell_of_slot", "the alerts"),
    ],
)
def test_a_replicator_of_which_a_task_died_ends_by_itself(
    replication: Group, monkeypatch: pytest.MonkeyPatch, owner: object, method: str, name: str
) -> None:
    monkeypatch.setattr(owner, method, lambda *_: die())
    ending = pytest.raises(TaskEndedError, match=f"{name} ended unexpectedly")
    with running(replication, alerts=alerts_to(NOBODY)) as process, ending as ended:
        process.ended.result(30)
    assert ended.value.exit_code == 75
    assert "hunter2" not in str(ended.value)


def test_a_replicator_that_shows_nothing_asks_for_nothing(replication: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceWatch, "run", lambda *_: die())
    with running(replication, metrics=NO_METRICS, until_lsn="current") as process:
        process.ended.result(30)
