"""One worker's facts for ``pgsluice status``: its position, its process, its waits and its misses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.console.columns import format_bytes
from pgsluice.shared.alerts.missing_rows import counted, is_divergence, missed_remedy
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.lag import UNKNOWN_LAG, Lag, copy_lag, measure_lag
from pgsluice.shared.broker.ledger import LedgerContent
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.worker_records import LEASE_DURATION_S, MissedReport, WorkerReport, lease_key
from pgsluice.shared.units.unit_states import SILENT_WORKER_S, UnitState, forget_advice

LATENCY_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class MissedStatus:
    """Changes of one table that met no row in the sink. ``diverged``: the table was copied, and neither filter nor
    route touches it, so it is evidence that source and target differ; then ``remedy`` is what to do. ``updates`` and
    ``deletes`` count changes of known kind, ``position`` is the first one's, "" if unknown."""

    table: str
    changes: int
    since: str
    diverged: bool
    updates: int = 0
    deletes: int = 0
    position: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """``lag_bytes`` counts bodies in the stream that the worker has not applied; ``lag_s`` is the age of the first of
    them (0: none). Both are unset when the worker is bound to another stream or its place in the stream is gone.
    ``changes`` counts the ones that its process has applied since ``started_at``; latencies are None when it applied
    nothing for a minute. ``rules`` is the hash of its rules and routes, "" without any; ``holds_back`` counts messages
    that are kept because a worker that does not run has not applied them; ``catching_up`` counts tables that were
    copied while others continued, whose changes lag by ``catch_up_lag_messages`` and ``catch_up_lag_s``; ``waiting`` is
    why its current batch cannot be applied for now, "" when it can. ``missed`` are the tables that matter most of the
    ``missed_tables`` whose changes met no row."""

    name: str
    sequence: int
    commit_lsn: str
    committed_at: str | None
    changes: int
    latency_p50_s: float | None
    latency_p99_s: float | None
    started_at: str
    updated_at: str
    host: str
    pid: int
    holds_lease: bool
    lag_messages: int | None
    lag_bytes: int | None
    lag_s: float | None
    dead_letters: int
    holds_back: int
    rules: str
    catching_up: int
    catch_up_lag_messages: int | None
    catch_up_lag_s: float | None
    waiting: str
    missed: list[MissedStatus]
    missed_tables: int


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """One read of a group for its workers; ``state`` is the stream's, None without one."""

    bucket: StateBucket
    stream: ChangeStream
    state: StreamState | None
    ledger: LedgerContent

    async def status(self, name: str, report: WorkerReport, unit: UnitState | None, dead_letters: int) -> WorkerStatus:
        """Raises TransientError when NATS does not answer."""
        state, is_recent = self.state, bool(report.updated_at) and age_s(report.updated_at) < LATENCY_AGE_S
        holds_lease, lag = await self._holds_lease(name), await self.lag(report)
        catch_up_lag = lag
        if state is not None and report.catching_up:
            catch_up_lag = await measure_lag(self.stream, state, report.catch_up_sequence)
        return WorkerStatus(
            name=name,
            sequence=report.sequence,
            commit_lsn=report.commit_lsn,
            committed_at=report.committed_at,
            changes=report.changes,
            latency_p50_s=report.latency_p50_s if is_recent else None,
            latency_p99_s=report.latency_p99_s if is_recent else None,
            started_at=report.started_at,
            updated_at=report.updated_at,
            host=report.host,
            pid=report.pid,
            holds_lease=holds_lease,
            lag_messages=lag.messages,
            lag_bytes=lag.bytes,
            lag_s=lag.seconds,
            dead_letters=dead_letters,
            holds_back=0 if holds_lease or state is None else _kept_for(report, state),
            rules=report.rules,
            catching_up=len(report.catching_up),
            catch_up_lag_messages=catch_up_lag.messages,
            catch_up_lag_s=catch_up_lag.seconds,
            waiting=_why_waiting(unit),
            missed=[_missed(each, self.ledger) for each in report.missed],
            missed_tables=report.missed_tables,
        )

    async def _holds_lease(self, name: str) -> bool:
        key = lease_key(name)
        age_s = None if await self.bucket.get(key) is None else await self.bucket.age_s(key)
        return age_s is not None and age_s <= LEASE_DURATION_S

    async def lag(self, report: WorkerReport) -> Lag:
        copied = copy_lag(self.ledger.snapshot, report)
        if copied is not None:
            return copied
        if self.state is None or report.stream_created not in (self.state.created, ""):
            return UNKNOWN_LAG
        return await measure_lag(self.stream, self.state, report.sequence)


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The worker of another group that publishes this one: changes that it has not applied are not in this group yet.
    Its lag is None if unknown, as when that group is gone."""

    group: str
    worker: str
    unit: UnitState
    lag_messages: int | None
    lag_s: float | None

    @property
    def name(self) -> str:
        return f"{self.group}/{self.worker}"

    def line(self) -> str:
        """Returns its position in words."""
        if self.lag_messages is None:
            return f"worker {self.worker} of group {self.group}: lag not known"
        seconds = "" if self.lag_s is None else f", {self.lag_s:.1f} s"
        return f"worker {self.worker} of group {self.group}: {self.lag_messages} messages{seconds} behind"


def age_s(time: str) -> float:
    """Returns 0 for a time that is not known."""
    if not time:
        return 0.0
    return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()


def _why_waiting(unit: UnitState | None) -> str:
    """Returns the process's wait; "" while it does not wait."""
    return unit.fact if unit is not None and unit.cause is not None else ""


def _missed(missed: MissedReport, ledger: LedgerContent) -> MissedStatus:
    diverged, kinds = is_divergence(missed, ledger.tables), (missed.updates, missed.deletes)
    remedy = missed_remedy(ledger.tables[missed.oid].qualified_name, missed.position) if diverged else ""
    return MissedStatus(missed.table, missed.changes, missed.since, diverged, *kinds, missed.position, remedy)


def _kept_for(report: WorkerReport, state: StreamState) -> int:
    """Returns how many messages retention keeps because this worker has not applied them."""
    return min(state.messages, max(0, state.last_sequence - report.applied_in(state.created)))


def worker_line(worker: WorkerStatus) -> str:
    """Returns the worker's position and process in words."""
    if worker.lag_messages is None:
        lag = "lag not known (another stream)"
    elif worker.lag_bytes is None or worker.lag_s is None:
        lag = f"{worker.lag_messages} messages behind"
    else:
        lag = f"{worker.lag_messages} messages, {format_bytes(worker.lag_bytes)}, {worker.lag_s:.1f} s behind"
    use = f"lease held at {worker.host}:{worker.pid}" if worker.holds_lease else "not running"
    if worker.holds_back:
        use += f", HOLDS BACK {worker.holds_back} messages"
    if worker.holds_back and age_s(worker.updated_at) > SILENT_WORKER_S:
        use += f" ({forget_advice(worker.name)})"
    rules = f", rules {worker.rules[:12]}" if worker.rules else ""
    lag += _catch_up(worker)
    dead = f", DEAD LETTERS: {worker.dead_letters}" if worker.dead_letters else ""
    return (
        f"{worker.name}: sequence {worker.sequence}, commit {worker.commit_lsn}, {lag}{dead}{rules}, {use}, "
        f"updated {worker.updated_at}"
    )


def _catch_up(worker: WorkerStatus) -> str:
    """Returns "" unless some tables lag behind the others."""
    if not worker.catching_up:
        return ""
    seconds = "" if worker.catch_up_lag_s is None else f", {worker.catch_up_lag_s:.1f} s"
    return f", {worker.catching_up} tables catching up: {worker.catch_up_lag_messages} messages{seconds} behind"


def missed_lines(worker: WorkerStatus) -> Iterator[str]:
    """Yields a line for each table whose changes met no row."""
    for missed in worker.missed:
        verdict = f"; it was copied, so SOURCE AND TARGET DIFFER: {missed.remedy}" if missed.diverged else ""
        changes = counted(missed.changes, missed.updates, missed.deletes)
        yield f"{changes} of table {missed.table} met no row since {missed.since[:19]}{verdict}"
    if worker.missed_tables > len(worker.missed):
        yield f"and those of {worker.missed_tables - len(worker.missed)} tables more"
