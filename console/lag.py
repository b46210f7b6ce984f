"""``pgsluice lag``: whether a group keeps up, from the source to the sinks, as an exit code for scripts.

A worker's lag at the stream is meaningless while no process fills the stream, so the command judges the replicator too:
whether it runs, and if not, since when.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import orjson
from nats.aio.client import Client

from pgsluice.console.columns import format_bytes
from pgsluice.console.status import publisher_status
from pgsluice.console.worker_status import age_s
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.lag import NO_LAG, UNKNOWN_LAG, Lag, copy_lag, measure_lag
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, worker_unit
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.units.found_units import known_units, read_units
from pgsluice.shared.units.unit_states import State, UnitState, unit_state
from pgsluice.shared.wire.names import GroupNames

BEHIND = 1
"""The exit code when the group lags more than allowed, and when its lag is not known."""

_WELL = (State.STARTING, State.COPYING, State.RUNNING, State.FINISHED)


@dataclass(frozen=True, slots=True)
class LagLimit:
    """``messages`` None: as many as there are."""

    seconds: float
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerLag:
    """``reason`` is the worker's lag, and why it is too large; None for unknown values."""

    worker: str
    messages: int | None
    bytes: int | None
    seconds: float | None
    within: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PublisherLag:
    """The verdict on the process that fills the stream: the replicator, or a worker of another group. ``reason`` names its
    state or its fault."""

    name: str
    within: bool
    reason: str


@dataclass(frozen=True, slots=True)
class GroupLag:
    """``publisher`` is unset in a group whose replicator was never started, or whose whole copy is applied and no
    changes follow."""

    publisher: PublisherLag | None
    workers: list[WorkerLag]

    @property
    def within(self) -> bool:
        return (
            bool(self.workers) and all(each.within for each in self.workers) and (self.publisher is None or self.publisher.within)
        )


def run(settings: GroupSettings, worker: str, limit: LagLimit, *, as_json: bool) -> int:
    """Prints a line for the replicator and each worker, or for the named worker. Returns the exit code. Raises TransientError
    when NATS does not answer."""
    lag = asyncio.run(_look(settings, worker, limit))
    if as_json:
        content = {"group": settings.group, "within": lag.within, "workers": [asdict(each) for each in lag.workers]}
        content |= {"publisher": None if lag.publisher is None else asdict(lag.publisher)}
        sys.stdout.write(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(lag))
    return 0 if lag.within else BEHIND


def _lines(lag: GroupLag) -> Iterator[str]:
    if lag.publisher is not None:
        yield f"{lag.publisher.name}: {lag.publisher.reason}"
    if not lag.workers:
        yield "no worker has started"
    for worker in lag.workers:
        yield f"{worker.worker}: {worker.reason}"


async def _look(settings: GroupSettings, worker: str, limit: LagLimit) -> GroupLag:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice lag {names.group}") as client:
        stream, bucket = ChangeStream(client, names), StateBucket(client, names)
        if not await bucket.exists():
            return GroupLag(None, [_never_started(worker)] if worker else [])
        ledger, state, reports = await Ledger(bucket).load(), await stream.state(), await read_reports(bucket)
        if worker:
            reports = {worker: reports[worker]} if worker in reports else {}
        units = {facts.unit: unit_state(facts) for facts in await read_units(bucket, await known_units(bucket), ledger.snapshot)}
        workers = [_never_started(worker)] if worker and not reports else []
        copied = {name: copy_lag(ledger.snapshot, report) for name, report in reports.items()}
        for name, report in sorted(reports.items()):
            only_copied = copied[name]
            if only_copied is not None:
                workers.append(judge_copy(name, only_copied, limit))
                continue
            lags = [await _measured(stream, state, report, place) for place in _places(report)]
            workers.append(_with_state(judge(name, lags, limit), units.get(worker_unit(name)), limit))
        is_done = bool(copied) and all(each == NO_LAG for each in copied.values())
        return GroupLag(None if is_done else await _publisher(client, bucket, units, limit), workers)


def _never_started(worker: str) -> WorkerLag:
    return WorkerLag(worker, None, None, None, False, "it has never started")


async def _publisher(client: Client, bucket: StateBucket, units: Mapping[str, UnitState], limit: LagLimit) -> PublisherLag | None:
    group = await bucket.read(GROUP_KEY, GroupRecord)
    if group is not None and group.value.publishing_worker is not None:
        found = await publisher_status(client, *group.value.publishing_worker)
        trouble, is_near = trouble_of(found.unit, limit), found.lag_s is not None and found.lag_s <= limit.seconds
        return PublisherLag(found.name, is_near and not trouble, trouble or found.line())
    unit = units[REPLICATOR_UNIT]
    if unit.state is State.DRAFT:
        return None
    trouble = trouble_of(unit, limit)
    return PublisherLag(REPLICATOR_UNIT, not trouble, trouble or str(unit.state))


def _with_state(lag: WorkerLag, unit: UnitState | None, limit: LagLimit) -> WorkerLag:
    trouble = "" if unit is None else trouble_of(unit, limit)
    return replace(lag, within=False, reason=f"{lag.reason}; {trouble}") if trouble else lag


def trouble_of(unit: UnitState, limit: LagLimit) -> str:
    """Returns why the unit may lag more than ``limit``; "" when it is well, or came into its state less than ``limit``
    ago and may recover."""
    if unit.state in _WELL:
        return ""
    is_recent = bool(unit.since) and age_s(unit.since) <= limit.seconds
    if is_recent and unit.state is not State.FAILED:
        return ""
    since = f" since {unit.since[:19]}" if unit.since else ""
    return f"{unit.state}{since}" + "".join(f": {part}" for part in (unit.fact, unit.remedy) if part)


def judge_copy(worker: str, lag: Lag, limit: LagLimit) -> WorkerLag:
    """Judges a worker of a group that is only copied."""
    if lag == NO_LAG:
        return WorkerLag(worker, 0, 0, 0.0, True, "it has applied the whole copy, which no changes follow")
    is_within = lag.seconds is not None and lag.seconds <= limit.seconds
    return WorkerLag(worker, lag.messages, None, lag.seconds, is_within, "it has not applied the whole copy yet")


def _places(report: WorkerReport) -> list[int]:
    """Returns the applied sequences: of the worker's tables, and of the tables that catch up with them."""
    return [report.sequence, report.catch_up_sequence] if report.catching_up else [report.sequence]


async def _measured(stream: ChangeStream, state: StreamState | None, report: WorkerReport, sequence: int) -> Lag:
    if state is None or report.stream_created not in (state.created, ""):
        return UNKNOWN_LAG
    return await measure_lag(stream, state, sequence)


def judge(worker: str, lags: list[Lag], limit: LagLimit) -> WorkerLag:
    """Judges by the worker's position with the largest lag."""
    lag = max(lags, key=lambda each: (each.messages is None, each.messages or 0))
    if lag.messages is None:
        return WorkerLag(worker, None, None, None, False, "its lag is not known: it is bound to another stream")
    if lag.seconds is None or lag.bytes is None:
        reason = f"{lag.messages} messages of lag, and the first of them is gone from the stream"
        return WorkerLag(worker, lag.messages, None, None, False, reason)
    excess = [f"more than {limit.seconds:g} s"] if lag.seconds > limit.seconds else []
    if limit.messages is not None and lag.messages > limit.messages:
        excess.append(f"more than {limit.messages} messages")
    reason = f"{lag.messages} messages, {format_bytes(lag.bytes)}, {lag.seconds:.1f} s behind"
    reason += f": {' and '.join(excess)}" if excess else ""
    return WorkerLag(worker, lag.messages, lag.bytes, lag.seconds, not excess, reason)
