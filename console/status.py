"""``pgsluice status``: where a group's slot, stream and workers are, for people and, with ``--json``, for programs.

What cannot be asked is shown as not known, with the reason; only NATS is needed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import orjson

from pgsluice.console.columns import format_bytes
from pgsluice.console.table_status import (
    MembershipStatus,
    TableStatus,
    format_membership,
    format_tables,
    membership_status,
    table_statuses,
)
from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.replicator.source.slot import ReplicationSlot, find_slot
from pgsluice.replicator.source.source import Source
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.definition_log import DefinitionLog, load_log
from pgsluice.shared.broker.halt import Halt, read_halt
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, Phase
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StreamState
from pgsluice.shared.broker.worker_records import LEASE_DURATION_S, MissedReport, WorkerReport, lease_key, read_reports
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.message import MessageHeaders
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, parse_lsn


@dataclass(frozen=True, slots=True)
class MissedStatus:
    """Changes of one table that met no row in the sink. ``diverged``: the table was copied, and neither filter nor route touches
    it, so it is evidence that source and target differ."""

    table: str
    changes: int
    since: str
    diverged: bool


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """``lag_bytes`` counts bodies in the stream that the worker has not applied; ``lag_s`` is the age of the first of them (0:
    none). They are None when the worker is bound to another stream or its place in the stream is gone. ``rules`` is the hash of
    its rules and routes, "" without any; ``holds_back`` counts messages that are kept because a worker that does not run has not
    applied them; ``catching_up`` counts tables that were copied while others went on, whose changes are ``catch_up_lag_messages``
    and ``catch_up_lag_s`` behind; ``waiting`` is why its batch in hand cannot be applied for now, "" when it can. ``missed`` are
    the tables that matter most of the ``missed_tables`` whose changes met no row."""

    name: str
    sequence: int
    commit_lsn: str
    committed_at: str | None
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
class GroupStatus:
    """Everything that one look found. ``source_problem`` is why ``slot`` is not known, "" when it was looked for. ``halt`` is why
    the replicator must not go on (``shared.broker.halt``). ``forged_definitions`` are messages that somebody else emitted in the
    group's name, ``missed_definitions`` count tables that were altered, and nothing had told of it."""

    group: str
    bound_to: GroupRecord | None
    replicator: ReplicatorRecord | None
    slot: ReplicationSlot | None
    source_problem: str
    stream: StreamState | None
    snapshot_stream: StreamState | None
    membership: MembershipStatus | None
    tables: list[TableStatus]
    workers: list[WorkerStatus]
    halt: Halt | None
    forged_definitions: int
    missed_definitions: int

    @property
    def was_started(self) -> bool:
        """A group that is only copied (``--copy``) is bound to no slot, but has tables."""
        return self.bound_to is not None or bool(self.tables)


NEVER_STARTED = 1
"""The exit code for a group that nobody started, or whose name is misspelt."""


def run(settings: StatusSettings, as_json: bool) -> int:
    """Writes to standard output and returns the exit code. Raises TransientError when NATS does not answer."""
    status = asyncio.run(_look(settings))
    if as_json:
        sys.stdout.write(orjson.dumps(asdict(status), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in format_status(status))
    return 0 if status.was_started else NEVER_STARTED


async def _look(settings: StatusSettings) -> GroupStatus:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice status {names.group}") as client:
        stream, bucket = ChangeStream(client, names), StateBucket(client, names)
        state, snapshot_state = await stream.state(), await SnapshotStream(client, names).state()
        known = await _known(bucket)
        letters = Counter(stored.letter.worker for stored in await DeadLetterStream(client, names).letters())
        workers = [
            await _worker(name, report, known.ledger, bucket, stream, state, letters[name])
            for name, report in sorted(known.reports.items())
        ]
    slot, problem = await _slot(settings, names)
    return GroupStatus(
        group=names.group,
        bound_to=known.group,
        replicator=known.replicator,
        slot=slot,
        source_problem=problem,
        stream=state,
        snapshot_stream=snapshot_state,
        membership=None if known.membership is None else membership_status(known.membership),
        tables=table_statuses(known.ledger, known.reports.values(), known.published, state),
        workers=workers,
        halt=known.halt,
        forged_definitions=known.definitions.forged.count,
        missed_definitions=known.definitions.missed.count,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What the state bucket holds of a group."""

    group: GroupRecord | None = None
    replicator: ReplicatorRecord | None = None
    halt: Halt | None = None
    membership: Membership | None = None
    ledger: LedgerContent = field(default_factory=lambda: LedgerContent(None, {}))
    reports: Mapping[str, WorkerReport] = field(default_factory=dict)
    definitions: DefinitionLog = field(default_factory=DefinitionLog)

    @property
    def published(self) -> LSN:
        return LSN(0) if self.replicator is None else parse_lsn(self.replicator.flushed_lsn)


async def _known(bucket: StateBucket) -> _Known:
    """Nothing when there is no bucket."""
    if not await bucket.exists():
        return _Known()
    group = await bucket.read(GROUP_KEY, GroupRecord)
    replicator = await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
    return _Known(
        group=group.value if group else None,
        replicator=replicator.value if replicator else None,
        halt=await read_halt(bucket),
        membership=await load_membership(bucket),
        ledger=await Ledger(bucket).load(),
        reports=await read_reports(bucket),
        definitions=await load_log(bucket),
    )


async def _worker(
    name: str,
    report: WorkerReport,
    ledger: LedgerContent,
    bucket: StateBucket,
    stream: ChangeStream,
    state: StreamState | None,
    dead_letters: int,
) -> WorkerStatus:
    lag: tuple[int | None, int | None, float | None] = (None, None, None)
    key = lease_key(name)
    lease_age_s = None if await bucket.get(key) is None else await bucket.age_s(key)
    holds_lease = lease_age_s is not None and lease_age_s <= LEASE_DURATION_S
    if state is not None and report.stream_created in (state.created, ""):
        lag = await _lag(stream, state, report.sequence)
    catch_up_lag = await _lag(stream, state, report.catch_up_sequence) if state is not None and report.catching_up else lag
    return WorkerStatus(
        name=name,
        sequence=report.sequence,
        commit_lsn=report.commit_lsn,
        committed_at=report.committed_at,
        updated_at=report.updated_at,
        host=report.host,
        pid=report.pid,
        holds_lease=holds_lease,
        lag_messages=lag[0],
        lag_bytes=lag[1],
        lag_s=lag[2],
        dead_letters=dead_letters,
        holds_back=0 if holds_lease or state is None else _kept_for(report, state),
        rules=report.rules,
        catching_up=len(report.catching_up),
        catch_up_lag_messages=catch_up_lag[0],
        catch_up_lag_s=catch_up_lag[2],
        waiting=report.waiting,
        missed=[_missed(each, ledger) for each in report.missed],
        missed_tables=report.missed_tables,
    )


def _missed(missed: MissedReport, ledger: LedgerContent) -> MissedStatus:
    table = ledger.tables.get(missed.oid)
    is_copied = table is not None and table.phase is Phase.FINISHED_COPY
    return MissedStatus(missed.table, missed.changes, missed.since, diverged=is_copied and not missed.expected)


def _kept_for(report: WorkerReport, state: StreamState) -> int:
    """How many messages retention keeps because this worker has not applied them."""
    return min(state.messages, max(0, state.last_sequence - report.applied_in(state.created)))


async def _lag(stream: ChangeStream, state: StreamState, sequence: int) -> tuple[int | None, int | None, float | None]:
    """Messages, bytes and seconds between ``sequence`` and the stream's end."""
    behind = state.last_sequence - sequence
    if behind <= 0:
        return 0, 0, 0.0
    last, first_behind = await stream.message(state.last_sequence), await stream.message(sequence + 1)
    if last is None or first_behind is None:
        return behind, None, None
    total = MessageHeaders.decode(last.headers).total_bytes
    before = MessageHeaders.decode(first_behind.headers).bytes_before(first_behind.data)
    return behind, total - before, max(0.0, (datetime.now(UTC) - first_behind.stored_at).total_seconds())


async def _slot(settings: StatusSettings, names: GroupNames) -> tuple[ReplicationSlot | None, str]:
    """The slot, or why it is not known."""
    if settings.source is None:
        return None, "no source given (--host, --dbname, --user)"
    try:
        source = await Source.connect(settings.source)
        try:
            slot = await find_slot(source, names)
        finally:
            await source.close()
    except PgsluiceError as error:
        return None, str(error)
    return slot, ""


def format_status(status: GroupStatus) -> Iterator[str]:
    """One aligned line for each thing."""
    yield f"group        {status.group}"
    yield f"source       {_source_line(status)}"
    yield f"slot         {_slot_line(status)}"
    if status.membership is not None:
        yield from format_membership(status.membership)
    yield f"replicator   {_replicator_line(status.replicator)}"
    yield from _definition_lines(status)
    if status.halt is not None:
        yield f"HALTED       since {status.halt.since}: {status.halt.fact}: {status.halt.remedy}"
    yield f"stream       {_stream_line(status.stream)}"
    if status.snapshot_stream is not None:
        yield f"snapshot     {_stream_line(status.snapshot_stream)}"
    if not status.workers:
        yield "workers      none has started"
    for worker in status.workers:
        yield f"worker       {_worker_line(worker)}"
        yield from (f"             {line}" for line in _missed_lines(worker))
    if status.tables:
        yield ""
        yield from format_tables(status.tables)


def _source_line(status: GroupStatus) -> str:
    bound = status.bound_to
    if bound is None:
        return "copied, and never streamed" if status.was_started else "this group has never been started on this NATS"
    return f"database {bound.database}, system {bound.system_id}, timeline {bound.timeline}"


def _slot_line(status: GroupStatus) -> str:
    slot = status.slot
    if slot is None:
        return f"not known: {status.source_problem}" if status.source_problem else "there is none"
    use = f"read by process {slot.active_pid}" if slot.active_pid is not None else "not in use"
    lag = "" if slot.lag_bytes is None else f", {format_bytes(slot.lag_bytes)} behind"
    trouble = f", LOST ({slot.lost})" if slot.lost else ""
    return f"{slot.name}: confirmed {slot.confirmed_flush}{lag}, wal_status {slot.wal_status}, {use}{trouble}"


def _replicator_line(record: ReplicatorRecord | None) -> str:
    if record is None:
        return "has never run"
    return (
        f"{record.host}:{record.pid}: flushed {record.flushed_lsn}, sequence {record.stream_sequence}, "
        f"{record.changes} changes in {record.messages} messages since {record.started_at}, "
        f"last progress {record.updated_at}"
    )


def _definition_lines(status: GroupStatus) -> Iterator[str]:
    if status.forged_definitions:
        yield f"             FORGED {status.forged_definitions} messages about definitions: somebody else emitted them"
    if status.missed_definitions:
        yield f"             MISSED {status.missed_definitions} definitions: tables were altered, and nothing told of it"


def _stream_line(state: StreamState | None) -> str:
    if state is None:
        return "there is none"
    return (
        f"{state.messages} messages ({state.first_sequence} to {state.last_sequence}), {format_bytes(state.bytes)} "
        f"of {format_bytes(state.max_bytes)}"
    )


def _worker_line(worker: WorkerStatus) -> str:
    if worker.lag_messages is None:
        lag = "lag not known (another stream)"
    elif worker.lag_bytes is None or worker.lag_s is None:
        lag = f"{worker.lag_messages} messages behind"
    else:
        lag = f"{worker.lag_messages} messages, {format_bytes(worker.lag_bytes)}, {worker.lag_s:.1f} s behind"
    use = f"lease held at {worker.host}:{worker.pid}" if worker.holds_lease else "not running"
    if worker.holds_back:
        use += f", HOLDS BACK {worker.holds_back} messages (pgsluice forget --worker {worker.name}, if it does not come back)"
    rules = f", rules {worker.rules[:12]}" if worker.rules else ""
    waiting = f", WAITING: {worker.waiting}" if worker.waiting else ""
    lag += _catch_up(worker)
    dead = f", DEAD LETTERS: {worker.dead_letters}" if worker.dead_letters else ""
    return (
        f"{worker.name}: sequence {worker.sequence}, commit {worker.commit_lsn}, {lag}{dead}{rules}, {use}, "
        f"updated {worker.updated_at}{waiting}"
    )


def _catch_up(worker: WorkerStatus) -> str:
    """ "" unless some tables are behind the others."""
    if not worker.catching_up:
        return ""
    seconds = "" if worker.catch_up_lag_s is None else f", {worker.catch_up_lag_s:.1f} s"
    return f", {worker.catching_up} tables catching up: {worker.catch_up_lag_messages} messages{seconds} behind"


def _missed_lines(worker: WorkerStatus) -> Iterator[str]:
    for missed in worker.missed:
        verdict = "; it was copied, so SOURCE AND TARGET DIFFER" if missed.diverged else ""
        yield f"{missed.changes} changes of table {missed.table} met no row since {missed.since[:19]}{verdict}"
    if worker.missed_tables > len(worker.missed):
        yield f"and those of {worker.missed_tables - len(worker.missed)} tables more"
