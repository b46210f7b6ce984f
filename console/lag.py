"""``pgsluice lag``: whether the workers of a group keep up, as an exit code for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import orjson

from pgsluice.console.columns import format_bytes
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.lag import UNKNOWN_LAG, Lag, measure_lag
from pgsluice.shared.broker.streams import ChangeStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.wire.names import GroupNames

BEHIND = 1
"""The exit code when a worker is further behind than it may be, and when that is not known."""


@dataclass(frozen=True, slots=True)
class LagLimit:
    """``messages`` None: as many as there are."""

    seconds: float
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerLag:
    """``reason`` says how far the worker is, and if that is too far why; None is what is not known."""

    worker: str
    messages: int | None
    bytes: int | None
    seconds: float | None
    within: bool
    reason: str


def run(settings: GroupSettings, worker: str, limit: LagLimit, *, as_json: bool) -> int:
    """A line for each worker, or for the one that is named. Returns the exit code. Raises TransientError when NATS does not
    answer."""
    lags = asyncio.run(_look(settings, worker, limit))
    within = bool(lags) and all(lag.within for lag in lags)
    if as_json:
        content = {"group": settings.group, "within": within, "workers": [asdict(lag) for lag in lags]}
        sys.stdout.write(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(lags))
    return 0 if within else BEHIND


def _lines(lags: list[WorkerLag]) -> Iterator[str]:
    if not lags:
        yield "no worker has started"
    for lag in lags:
        yield f"{lag.worker}: {lag.reason}"


async def _look(settings: GroupSettings, worker: str, limit: LagLimit) -> list[WorkerLag]:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice lag {names.group}") as client:
        stream, bucket = ChangeStream(client, names), StateBucket(client, names)
        state = await stream.state()
        reports = await read_reports(bucket) if await bucket.exists() else {}
        if worker:
            reports = {worker: reports[worker]} if worker in reports else {}
            if not reports:
                return [WorkerLag(worker, None, None, None, False, "it has never started")]
        return [
            judge(name, [await _measured(stream, state, report, place) for place in _places(report)], limit)
            for name, report in sorted(reports.items())
        ]


def _places(report: WorkerReport) -> list[int]:
    """The sequences up to which all is applied: of the worker's tables, and of those that catch up with them."""
    return [report.sequence, report.catch_up_sequence] if report.catching_up else [report.sequence]


async def _measured(stream: ChangeStream, state: StreamState | None, report: WorkerReport, sequence: int) -> Lag:
    if state is None or report.stream_created not in (state.created, ""):
        return UNKNOWN_LAG
    return await measure_lag(stream, state, sequence)


def judge(worker: str, lags: list[Lag], limit: LagLimit) -> WorkerLag:
    """By the furthest of its places."""
    lag = max(lags, key=lambda each: (each.messages is None, each.messages or 0))
    if lag.messages is None:
        return WorkerLag(worker, None, None, None, False, "how far it is behind is not known: it is bound to another stream")
    if lag.seconds is None or lag.bytes is None:
        reason = f"{lag.messages} messages behind, and the first of them is gone from the stream"
        return WorkerLag(worker, lag.messages, None, None, False, reason)
    excess = [f"more than {limit.seconds:g} s"] if lag.seconds > limit.seconds else []
    if limit.messages is not None and lag.messages > limit.messages:
        excess.append(f"more than {limit.messages} messages")
    reason = f"{lag.messages} messages, {format_bytes(lag.bytes)}, {lag.seconds:.1f} s behind"
    reason += f": {' and '.join(excess)}" if excess else ""
    return WorkerLag(worker, lag.messages, lag.bytes, lag.seconds, not excess, reason)
