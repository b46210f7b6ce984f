"""A worker's records in the state bucket: report, newest batches, ready tables, lease, and the position of some sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.record import LsnText, TimeText
from pgsluice.shared.errors import Cause

LEASE_DURATION_S = 10.0
"""A worker's lease that was not renewed for so long is free."""

MOST_BATCHES = 50
"""Number of batches in a worker's record."""

_WORKER_PREFIX = "worker."
_ANY_LSN = "FFFFFFFF/FFFFFFFF"
_FORGET = "another program wrote it; 'pgsluice forget --worker' removes the group's records of a worker"


def worker_key(worker: str) -> str:
    return _WORKER_PREFIX + worker


def worker_of(key: str) -> str | None:
    """Returns the worker whose report the bucket has under ``key``; None for any other key."""
    return key.removeprefix(_WORKER_PREFIX) if key.startswith(_WORKER_PREFIX) else None


def position_key(worker: str) -> str:
    return f"position.{worker}"


def batches_key(worker: str) -> str:
    return f"batches.{worker}"


def ready_key(worker: str) -> str:
    return f"ready.{worker}"


def lease_key(worker: str) -> str:
    return f"lease.{worker}"


@dataclass(frozen=True, slots=True)
class MissedReport:
    """Changes of one table that met no row in the sink. ``table`` is the name in the sink; ``expected``: a filter or a
    route can explain the misses. ``updates`` and ``deletes`` count changes of known kind, ``position`` is the first
    change's, "" if unknown."""

    oid: int
    table: str
    changes: int
    since: TimeText
    expected: bool
    updates: int = 0
    deletes: int = 0
    position: str = ""


@dataclass(frozen=True, slots=True)
class UnchangedRows:
    """Number of rows of a SQL pipeline's newest run that existed already, unchanged. ``sequence`` is the last message
    applied of it."""

    sequence: int
    rows: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's report, under ``worker.<name>``: the replicator removes no message that it does not name as applied;
    the rest is for readers. It may be older than the sink's own position, never newer.

    ``sequence`` and ``snapshot_sequence`` are those of the last messages applied, the first in the stream that was made
    at ``stream_created``; ``commit_lsn``, ``committed_at`` are those of the last transaction. Latencies are from a
    commit at the source until it was applied, within a minute. ``catching_up`` are the oids of tables whose changes are
    applied up to ``catch_up_sequence`` and ``catch_up_lsn`` only. ``missed`` are the tables that matter most of
    ``missed_tables``. ``two_lanes``: the sink lets single tables wait; ``paused_tables`` are oids of tables that it
    holds back because they are paused. Messages after ``held_sequence`` are needed again although they are applied,
    unless ``held_sequence`` is unset. ``copied_at`` is when ``snapshot_sequence`` came to be what it is, "" where no
    process has seen it; ``unchanged`` the newest that is known.
    """

    sequence: int
    snapshot_sequence: int = 0
    commit_lsn: LsnText = _ANY_LSN
    committed_at: TimeText | None = None
    stream_created: str = ""
    rules: str = ""
    batches: int = 0
    changes: int = 0
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    missed: tuple[MissedReport, ...] = ()
    missed_tables: int = 0
    catching_up: tuple[int, ...] = ()
    catch_up_sequence: int = 0
    catch_up_lsn: LsnText = ""
    two_lanes: bool = False
    paused_tables: tuple[int, ...] = ()
    held_sequence: int | None = None
    copied_at: TimeText = ""
    unchanged: UnchangedRows | None = None
    started_at: TimeText = ""
    updated_at: TimeText = ""
    host: str = ""
    pid: int = 0

    MALFORMED_REMEDY: ClassVar[str] = _FORGET

    def applied_in(self, stream_created: str) -> int:
        """Returns the last message that is applied for all tables, where sequences count in the stream that was made
        then; else 0."""
        if self.stream_created != stream_created:
            return 0
        return self.catch_up_sequence if self.catching_up else self.sequence

    def released_in(self, stream_created: str) -> int:
        """Returns the last message that this worker needs no more."""
        applied = self.applied_in(stream_created)
        return applied if self.held_sequence is None else min(applied, self.held_sequence)

    @property
    def applied_lsn(self) -> str:
        """The last transaction that is applied for all tables."""
        return self.catch_up_lsn if self.catching_up else self.commit_lsn

    def applied_lsn_of(self, oid: int) -> str:
        """Like ``applied_lsn``, for a single table."""
        return self.catch_up_lsn if oid in self.catching_up else self.commit_lsn


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch that was applied at ``at``. ``lane`` is its kind: ``copied`` rows, ``changes``, or changes of tables
    that catch up (``catch-up``). ``seconds`` are those of the attempt that was applied, from its tasks' begin to its
    commit's end; it may have begun while the batch before was committed.

    ``attempts`` includes failed ones, ``waited_s`` how long they delayed the batch. ``waited_for`` and ``reason`` are
    the cause and the sentence of the last failure; None and "" where none failed, or where changes were only set aside.
    """

    at: TimeText
    lane: str
    changes: int
    seconds: float
    plan_s: float
    write_s: float
    commit_s: float
    attempts: int = 1
    waited_s: float = 0.0
    waited_for: Cause | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BatchesRecord:
    """A worker's newest batches, under ``batches.<name>``, written with the report: batches of the process that began
    at ``started_at``, MOST_BATCHES at most, the oldest of them first."""

    started_at: TimeText
    batches: tuple[BatchRecord, ...] = ()

    MALFORMED_REMEDY: ClassVar[str] = "the worker writes it again with its next batch"


@dataclass(frozen=True, slots=True)
class ReadyMoment:
    """Tables that became ready at ``at``: the oid of each, and the ``last_sequence`` of its copy (``ledger.TableRecord``)."""

    at: TimeText
    tables: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReadyRecord:
    """The times since which tables are ready where this worker is, under ``ready.<name>``, written when they change.
    Tables are missing that became ready while no process of the worker looked, such as one of an earlier version."""

    moments: tuple[ReadyMoment, ...] = ()

    MALFORMED_REMEDY: ClassVar[str] = _FORGET

    @classmethod
    def of(cls, moments: Mapping[tuple[int, int], str]) -> ReadyRecord:
        tables: dict[str, list[tuple[int, int]]] = {}
        for copy, at in sorted(moments.items()):
            tables.setdefault(at, []).append(copy)
        return cls(tuple(ReadyMoment(at, tuple(copies)) for at, copies in tables.items()))

    def by_copy(self) -> dict[tuple[int, int], str]:
        """Returns the moment for each oid and ``last_sequence``."""
        return {copy: moment.at for moment in self.moments for copy in moment.tables}


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The position of a worker whose sink has no better place for it, under ``position.<name>``. ``committed_at``
    counts microseconds since 2000. ``announced``: sequences at which a batch ended that was begun and perhaps not
    applied, each with whether it is of the snapshot stream; ``announced_catch_up`` are those of tables that catch up.
    ``catch_up`` holds these tables and their positions: ``CatchUp.encode``. ``writer`` distinguishes this process's
    writes from another's."""

    sequence: int
    commit_lsn: LsnText
    committed_at: int
    stream_created: str
    snapshot_sequence: int = 0
    rules: str = ""
    announced: tuple[tuple[bool, int], ...] = ()
    announced_catch_up: tuple[int, ...] = ()
    catch_up: str = ""
    writer: str = ""

    MALFORMED_REMEDY: ClassVar[str] = f"{_FORGET}; it begins at the oldest message then"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The process that runs a worker, under ``lease.<name>``. ``boot`` and ``started`` distinguish its process from any
    other of that number, "" if the system does not provide them."""

    host: str
    pid: int
    boot: str = ""
    started: str = ""

    MALFORMED_REMEDY: ClassVar[str] = "another program wrote it; remove the key from the bucket"


async def read_reports(bucket: StateBucket) -> dict[str, WorkerReport]:
    """Returns the reports of all registered workers, by name."""
    reports = {}
    for key in await bucket.keys():
        name = worker_of(key)
        entry = None if name is None else await bucket.read(key, WorkerReport)
        if name is not None and entry is not None:
            reports[name] = entry.value
    return reports
