"""``pgsluice ddl log`` and ``ddl accept``: published definitions, their outcomes at workers, and operators' decisions.

Only NATS is needed; neither the replicator nor a worker need run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson
from nats.aio.client import Client

from pgsluice.console.columns import format_columns
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket, describe_groups, list_groups
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.definition_log import (
    DefinitionLog,
    DefinitionOutcome,
    LoggedDefinition,
    Outcomes,
    load_log,
    load_outcomes,
)
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.definitions.definition_decisions import HeldColumn, accept, load_held
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import Position, parse_lsn
from pgsluice.shared.wire.table import TablePattern

log = telemetry.logger(__name__)

NOT_REACHED = "not reached yet"
NOT_NOTED = "passed"
"""Outcome of a worker that passed it without a record: it was killed at that moment, or joined the group later."""

_HEADINGS = ("POSITION", "COMMITTED", "TABLE", "WORKERS", "CHANGES")


@dataclass(frozen=True, slots=True)
class _Worker:
    """``outcomes`` are by position; ``held`` are columns that wait for a decision."""

    report: WorkerReport
    outcomes: Outcomes
    held: Sequence[HeldColumn]

    def words_for(self, definition: LoggedDefinition) -> tuple[str, ...]:
        position = definition.position
        noted = self.outcomes.get(position)
        if noted is not None:
            return tuple(outcome.value for outcome in noted.outcomes)
        reached = parse_lsn(self.report.applied_lsn_of(definition.oid))
        return (NOT_NOTED,) if reached >= position.commit_lsn else (NOT_REACHED,)


@dataclass(frozen=True, slots=True)
class _KnownDefinitions:
    log: DefinitionLog
    workers: Mapping[str, _Worker]


def list_definitions(settings: GroupSettings, table: str, limit: int, *, as_json: bool) -> None:
    """Writes the newest ``limit`` (0: all) of those tables that the pattern ``table`` names ("": of all), the oldest first."""
    pattern = _pattern(table) if table else None
    known = asyncio.run(_look(settings))
    found = [each for each in known.log.definitions if pattern is None or _is_of(each.name, pattern)]
    found = found[-limit:] if limit else found
    if as_json:
        sys.stdout.writelines(orjson.dumps(_facts(each, known.workers)).decode() + "\n" for each in found)
        return
    rows = [_columns(each, known.workers) for each in found]
    sys.stdout.writelines(f"{line}\n" for line in format_columns(_HEADINGS, rows))


def accept_definitions(settings: GroupSettings, named: str, worker: str) -> None:
    """``named`` is a position, or the table that workers wait with; ``worker`` is "" for all of them. Raises UsageError for what
    names nothing, TransientError when NATS does not answer."""
    positions = asyncio.run(_accept(settings, named, worker))
    log.info(
        "accepted; a worker that stopped for it continues when it is started",
        positions=", ".join(map(str, positions)),
        worker=worker or "all",
    )


async def _accept(settings: GroupSettings, named: str, worker: str) -> list[Position]:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice ddl {names.group}") as client:
        bucket = await _bucket(client, names)
        known = await _known(bucket)
        if worker and worker not in known.workers:
            raise UsageError(
                f"group {names.group!r} has no worker {worker!r}", f"its workers: {', '.join(known.workers) or 'none'}"
            )
        positions = _named(named, known, worker)
        await accept(bucket, positions, worker, datetime.now(UTC).isoformat(timespec="seconds"))
    return positions


def _named(named: str, known: _KnownDefinitions, worker: str) -> list[Position]:
    try:
        position = Position.parse(named)
    except ValueError:
        return _waiting(_pattern(named), known, worker)
    if all(each.position != position for each in known.log.definitions):
        raise UsageError(f"there is no definition at {named}", "see 'pgsluice ddl log'")
    return [position]


def _waiting(table: TablePattern, known: _KnownDefinitions, worker: str) -> list[Position]:
    """Returns the definitions of the table that a worker stopped for, or whose columns it holds."""
    if not table.is_name:
        raise UsageError(f"{table.text!r} may be several tables", "name one, or give a position as 'pgsluice ddl log' shows it")
    workers = [each for name, each in known.workers.items() if worker in ("", name)]
    held = {Position.parse(column.position) for each in workers for column in each.held if _is_of(column.table, table)}
    stopped = {
        each.position
        for each in known.log.definitions
        if _is_of(each.name, table) and any(DefinitionOutcome.STOPPED in _noted(one, each.position) for one in workers)
    }
    if not held | stopped:
        raise UsageError(f"no worker waits for a decision about table {table.text!r}", "see 'pgsluice ddl log'")
    return sorted(held | stopped)


def _noted(worker: _Worker, position: Position) -> tuple[DefinitionOutcome, ...]:
    noted = worker.outcomes.get(position)
    return () if noted is None else noted.outcomes


async def _look(settings: GroupSettings) -> _KnownDefinitions:
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice ddl {names.group}") as client:
        return await _known(await _bucket(client, names))


async def _bucket(client: Client, names: GroupNames) -> StateBucket:
    bucket = StateBucket(client, names)
    if not await bucket.exists():
        raise UsageError(
            f"group {names.group!r} has never been started on this NATS",
            f"check group and nats-url; {describe_groups(await list_groups(client))}",
        )
    return bucket


async def _known(bucket: StateBucket) -> _KnownDefinitions:
    workers = {
        name: _Worker(report, await load_outcomes(bucket, name), tuple(await load_held(bucket, name)))
        for name, report in sorted((await read_reports(bucket)).items())
    }
    return _KnownDefinitions(await load_log(bucket), workers)


def _pattern(text: str) -> TablePattern:
    try:
        return TablePattern.parse(text)
    except ValueError as error:
        raise UsageError(f"{text!r} {error}", "or give a position as 'pgsluice ddl log' shows it") from None


def _is_of(name: str, pattern: TablePattern) -> bool:
    """``name`` is schema and table with a dot between; a name that holds one itself is found by any of its readings."""
    parts = name.split(".")
    return any(pattern.matches(".".join(parts[:cut]), ".".join(parts[cut:])) for cut in range(1, len(parts)))


def _columns(definition: LoggedDefinition, workers: Mapping[str, _Worker]) -> tuple[str, ...]:
    return (
        str(definition.position),
        definition.committed_at[:19] or "-",
        definition.name or "-",
        "; ".join(_said(definition, workers)) or "no worker",
        ", ".join(definition.changes),
    )


def _said(definition: LoggedDefinition, workers: Mapping[str, _Worker]) -> Iterator[str]:
    for name, worker in workers.items():
        yield f"{name}: {', '.join(worker.words_for(definition))}"


def _facts(definition: LoggedDefinition, workers: Mapping[str, _Worker]) -> dict[str, object]:
    def of(worker: _Worker) -> dict[str, object]:
        noted = worker.outcomes.get(definition.position)
        return {"outcomes": worker.words_for(definition), "at": None if noted is None else noted.at}

    return {
        "position": str(definition.position),
        "committed_at": definition.committed_at or None,
        "tag": definition.tag,
        "table": definition.name or None,
        "oid": definition.oid or None,
        "changes": definition.changes,
        "workers": {name: of(worker) for name, worker in workers.items()},
    }
