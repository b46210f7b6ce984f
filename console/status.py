"""``pgsluice status``: the positions of a group's slot, stream and workers, for users and, with ``--json``, for programs.

A part that cannot be read is shown as not known, with the reason; only NATS is needed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import orjson
from nats.aio.client import Client

from pgsluice.console.columns import format_bytes
from pgsluice.console.table_status import (
    MembershipStatus,
    TableStatus,
    format_membership,
    format_tables,
    membership_status,
    table_statuses,
)
from pgsluice.console.worker_status import (
    PublisherStatus,
    WorkerLook,
    WorkerStatus,
    missed_lines,
    worker_line,
)
from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.replicator.source.slot import ReplicationSlot
from pgsluice.replicator.source.slot_look import SlotLook, record_of
from pgsluice.shared.alerts.conditions import Condition, find_shortages
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, LetterCounts
from pgsluice.shared.broker.definition_log import DefinitionLog, load_log
from pgsluice.shared.broker.halt import Halt, read_halt
from pgsluice.shared.broker.lag import UNKNOWN_LAG
from pgsluice.shared.broker.ledger import Ledger, LedgerContent
from pgsluice.shared.broker.replicator_records import GROUP_KEY, REPLICATOR_KEY, GroupRecord, ReplicatorRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StreamState
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, worker_unit
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports, worker_key
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.units.applied_places import AppliedPlaces, read_moments
from pgsluice.shared.units.found_units import known_units, read_units
from pgsluice.shared.units.paused_tables import PAUSED_TABLES, PausedTable, PausedTables
from pgsluice.shared.units.unit_states import State, UnitFacts, UnitState, unit_state
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, parse_lsn


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The result of one read. ``source_problem`` is why ``slot`` is not known, "" when it was read. ``halt`` is why the
    replicator must not continue (``shared.broker.halt``). ``forged_definitions`` are messages that another client
    emitted in the group's name, ``missed_definitions`` count tables that were altered without a message. ``units`` are
    the states of the processes, ``paused_tables`` the tables whose changes are held back. ``publisher`` replaces the
    replicator, if a worker publishes the group. ``shortages`` are resources that run out: room in a stream, WAL that
    the source keeps."""

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
    units: list[UnitState] = field(default_factory=list)
    paused_tables: list[PausedTable] = field(default_factory=list)
    publisher: PublisherStatus | None = None
    shortages: list[Condition] = field(default_factory=list)

    @property
    def was_started(self) -> bool:
        """A group that is only copied (``--copy``) is bound to no slot, but has tables."""
        return self.bound_to is not None or bool(self.tables)


NEVER_STARTED = 1
"""The exit code for a group that was never started, or whose name is misspelt."""


def run(settings: StatusSettings, as_json: bool) -> int:
    """Writes to standard output and returns the exit code. Raises TransientError when NATS does not answer."""
    status = asyncio.run(_look_once(settings))
    if as_json:
        sys.stdout.write(orjson.dumps(asdict(status), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in format_status(status))
    return 0 if status.was_started else NEVER_STARTED


async def _look_once(settings: StatusSettings) -> GroupStatus:
    names = GroupNames(settings.group)
    slot = SlotLook(settings.source, names)
    async with connected(settings.nats, f"pgsluice status {names.group}") as client:
        try:
            return await look(client, names, slot, LetterCounts())
        finally:
            await slot.close()


async def look(
    client: Client, names: GroupNames, slot_look: SlotLook, letters: LetterCounts, documented: Sequence[str] = ()
) -> GroupStatus:
    """Returns the current status. Raises TransientError when NATS does not answer. ``slot_look`` and ``letters`` are
    kept from one call to the next. ``documented`` are wanted units, though they may never have been started."""
    stream, copied, bucket = ChangeStream(client, names), SnapshotStream(client, names), StateBucket(client, names)
    state, snapshot_state = await stream.state(), await copied.state()
    known = await _known(bucket, documented)
    counts = await letters.of(DeadLetterStream(client, names))
    workers = WorkerLook(bucket, stream, state, known.ledger)
    slot, problem = await slot_look.look()
    streams = {found.name: its for found, its in ((stream, state), (copied, snapshot_state)) if its is not None}
    return GroupStatus(
        group=names.group,
        bound_to=known.group,
        replicator=known.replicator,
        slot=slot,
        source_problem=problem,
        stream=state,
        snapshot_stream=snapshot_state,
        membership=None if known.membership is None else membership_status(known.membership),
        tables=table_statuses(known.ledger, AppliedPlaces(known.reports.values(), known.published, state, known.moments)),
        workers=[
            await workers.status(name, report, known.units.get(worker_unit(name)), counts[name])
            for name, report in sorted(known.reports.items())
        ],
        halt=known.halt,
        forged_definitions=known.definitions.forged.count,
        missed_definitions=known.definitions.missed.count,
        units=list(known.units.values()),
        paused_tables=list(known.paused_tables.tables),
        publisher=None if known.publisher is None else await publisher_status(client, *known.publisher),
        shortages=find_shortages(None if slot is None else record_of(slot), streams),
    )


async def publisher_status(client: Client, group: str, worker: str) -> PublisherStatus:
    """Returns the status of the worker that publishes a group, by its own group and name. Raises TransientError when
    NATS does not answer."""
    names, unit = GroupNames(group), worker_unit(worker)
    bucket, stream = StateBucket(client, names), ChangeStream(client, names)
    if not await bucket.exists():
        return PublisherStatus(group, worker, unit_state(UnitFacts(unit)), None, None)
    ledger, state = await Ledger(bucket).load(), await stream.state()
    [facts] = await read_units(bucket, [unit], ledger.snapshot)
    report = await bucket.read(worker_key(worker), WorkerReport)
    lag = UNKNOWN_LAG if report is None else await WorkerLook(bucket, stream, state, ledger).lag(report.value)
    return PublisherStatus(group, worker, unit_state(facts), lag.messages, lag.seconds)


@dataclass(frozen=True, slots=True)
class _GroupRecords:
    """A group's records in the state bucket."""

    group: GroupRecord | None = None
    replicator: ReplicatorRecord | None = None
    halt: Halt | None = None
    membership: Membership | None = None
    ledger: LedgerContent = field(default_factory=lambda: LedgerContent(None, {}))
    reports: Mapping[str, WorkerReport] = field(default_factory=dict)
    moments: Sequence[Mapping[tuple[int, int], str]] = ()
    definitions: DefinitionLog = field(default_factory=DefinitionLog)
    units: Mapping[str, UnitState] = field(default_factory=dict)
    paused_tables: PausedTables = field(default_factory=PausedTables)

    @property
    def publisher(self) -> tuple[str, str] | None:
        """Group and name of the worker that publishes the group; None where a replicator does."""
        return None if self.group is None else self.group.publishing_worker

    @property
    def published(self) -> LSN:
        return LSN(0) if self.replicator is None else parse_lsn(self.replicator.flushed_lsn)


async def _known(bucket: StateBucket, documented: Sequence[str]) -> _GroupRecords:
    """Returns only drafts when there is no bucket."""
    if not await bucket.exists():
        return _GroupRecords(units={unit: unit_state(UnitFacts(unit)) for unit in documented})
    group = await bucket.read(GROUP_KEY, GroupRecord)
    replicator = await bucket.read(REPLICATOR_KEY, ReplicatorRecord)
    ledger = await Ledger(bucket).load()
    units = [unit_state(facts) for facts in await read_units(bucket, await known_units(bucket, documented), ledger.snapshot)]
    return _GroupRecords(
        group=group.value if group else None,
        replicator=replicator.value if replicator else None,
        halt=await read_halt(bucket),
        membership=await load_membership(bucket),
        ledger=ledger,
        reports=await read_reports(bucket),
        moments=await read_moments(bucket),
        definitions=await load_log(bucket),
        units={unit.unit: unit for unit in units},
        paused_tables=await PAUSED_TABLES.load(bucket),
    )


def format_status(status: GroupStatus) -> Iterator[str]:
    """Yields one aligned line for each thing."""
    yield f"group        {status.group}"
    yield f"source       {_source_line(status)}"
    if status.publisher is None:
        yield f"slot         {_slot_line(status)}"
    if status.membership is not None:
        yield from format_membership(status.membership)
    states = {unit.unit: unit for unit in status.units}
    if status.publisher is None:
        yield f"replicator   {_replicator_line(status)}"
        yield from _state_lines(states.get(REPLICATOR_UNIT))
    else:
        yield f"publisher    {status.publisher.line()}"
        yield from _state_lines(status.publisher.unit)
    yield from _definition_lines(status)
    if status.halt is not None:
        yield f"HALTED       since {status.halt.since}: {status.halt.fact}: {status.halt.remedy}"
    for short in status.shortages:
        yield f"RUNS OUT     {short.fact}: {short.remedy}"
    for table in status.paused_tables:
        said = "".join(f", {part}" for part in (table.by and f"by {table.by}", table.reason) if part)
        yield f"PAUSED       table {table.qualified_name} since {table.at[:19]}{said}: 'pgsluice resume --table' lets it catch up"
    yield f"stream       {_stream_line(status.stream)}"
    if status.snapshot_stream is not None:
        yield f"snapshot     {_stream_line(status.snapshot_stream)}"
    if not status.workers:
        yield "workers      none has started"
    for worker in status.workers:
        yield f"worker       {worker_line(worker)}"
        yield from _state_lines(states.get(worker_unit(worker.name)))
        yield from (f"             {line}" for line in missed_lines(worker))
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


def _replicator_line(status: GroupStatus) -> str:
    record = status.replicator
    if record is None:
        return "copies, and streams nothing" if status.tables else "has never run"
    return (
        f"{record.host}:{record.pid}: flushed {record.flushed_lsn}, sequence {record.stream_sequence}, "
        f"{record.changes} changes in {record.messages} messages since {record.started_at}, "
        f"last progress {record.updated_at}"
    )


def _state_lines(unit: UnitState | None) -> Iterator[str]:
    """Yields lines about the state; a normal state is in lower case."""
    if unit is None:
        return
    is_well = unit.state in (State.DRAFT, State.STARTING, State.COPYING, State.RUNNING, State.FINISHED)
    state = str(unit.state) if is_well else unit.state.upper()
    since = f" since {unit.since[:19]}" if unit.since else ""
    attempt = f"; tries again at {unit.next_attempt_at[11:19]} UTC" if unit.next_attempt_at else ""
    said = "".join(f": {part}" for part in (unit.fact, unit.remedy) if part)
    yield f"             {state}{since}{said}{attempt}"


def _definition_lines(status: GroupStatus) -> Iterator[str]:
    if status.forged_definitions:
        yield f"             FORGED {status.forged_definitions} unsigned DDL messages: another program emitted them"
    if status.missed_definitions:
        yield f"             MISSED {status.missed_definitions} untracked schema changes: no trigger reported them"


def _stream_line(state: StreamState | None) -> str:
    if state is None:
        return "there is none"
    return (
        f"{state.messages} messages ({state.first_sequence} to {state.last_sequence}), {format_bytes(state.bytes)} "
        f"of {format_bytes(state.max_bytes)}"
    )
