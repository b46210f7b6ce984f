"""``pgsluice tables``: orders about a group's tables while it streams, and what each table is like.

An order is written into the group's state bucket; its replicator carries it out, now or when it starts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from pgsluice.console.columns import format_columns
from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket, describe_groups, list_groups
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, LedgerContent, Phase, Retry, TableRecord
from pgsluice.shared.broker.table_orders import ORDERS, OrderVerb, TableOrder, TableOutcome, give_order
from pgsluice.shared.broker.table_selection import TableSelection, load_selection
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.units.applied_places import AppliedPlaces
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

LOOK_INTERVAL_S = 0.5
PROGRESS_INTERVAL_S = 5.0

_COPYING = (OrderVerb.ADD, OrderVerb.RECOPY, OrderVerb.RETRY)
"""After these a command waits for copies."""

_START = "start the replicator, which carries it out; --no-wait gives an order without waiting"

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for. ``wait_s`` is how long at most to wait for it, None for not at all."""

    verb: OrderVerb
    tables: tuple[str, ...]
    without_copy: bool
    wait_s: float | None

    @classmethod
    def of(cls, verb: str, tables: tuple[str, ...], *, without_copy: bool, wait_s: float | None) -> Wish:
        return cls(OrderVerb(verb), tables, without_copy, wait_s)


def order(settings: GroupSettings, wish: Wish) -> None:
    """Raises UsageError for what is no table or no group, TerminalError when something is refused, TransientError when nobody
    carries the order out in time: it stays."""
    for text in wish.tables:
        _check(text)
    asyncio.run(_order(settings, wish))


def _check(text: str) -> None:
    try:
        TablePattern.parse(text)
    except ValueError as error:
        raise UsageError(f"{text!r} {error}", "name tables like 'orders', 'sales.orders' or 'sales.*'") from None


async def _order(settings: GroupSettings, wish: Wish) -> None:
    async with bucket_of(settings) as bucket:
        number = await give_order(bucket, wish.verb, wish.tables, without_copy=wish.without_copy)
        if wish.wait_s is None:
            log.info("the order is given; see 'pgsluice tables list'", order=wish.verb.value, tables=",".join(wish.tables))
            return
        deadline = time.monotonic() + wish.wait_s
        done = await _done(bucket, number, deadline)
        for outcome in done.outcomes:
            _show(outcome)
        if wish.verb in _COPYING:
            await _follow_copies(bucket, done.outcomes, deadline)
        if refused := [outcome.table for outcome in done.outcomes if outcome.is_refused]:
            raise TerminalError(f"refused: {', '.join(refused)}", "see above")


def _show(outcome: TableOutcome) -> None:
    remedy = f": {outcome.remedy}" if outcome.remedy else ""
    sys.stdout.write(f"{outcome.table}: {outcome.text}{remedy}\n")
    sys.stdout.flush()


async def _done(bucket: StateBucket, number: int, deadline: float) -> TableOrder:
    was_taken = False
    while True:
        found = (await ORDERS.load(bucket)).order(number)
        if found is None:
            raise TransientError(f"what became of order {number} is not known any more", "see 'pgsluice tables list'")
        if found.done_at:
            return found
        if found.taken_at and not was_taken:
            was_taken = True
            log.info("the replicator is at it")
        if time.monotonic() > deadline:
            raise _not_done(found)
        await asyncio.sleep(LOOK_INTERVAL_S)


def _not_done(order: TableOrder) -> TransientError:
    if not order.taken_at:
        return TransientError("the order is given, and no replicator of the group has taken it up", _START)
    if order.verb is OrderVerb.FORGET:
        return TransientError(
            "the order waits until every worker has applied what it holds of these tables",
            "start the workers, or run 'pgsluice forget' for one that does not come back",
        )
    return TransientError("the replicator is still at it", "see 'pgsluice tables list'; its log says what it waits for")


async def _follow_copies(bucket: StateBucket, outcomes: Sequence[TableOutcome], deadline: float) -> None:
    """Until these tables are copied; says how far they are now and then."""
    names = {outcome.table for outcome in outcomes if not outcome.is_refused}
    told_at = time.monotonic()
    while True:
        records = [each for each in (await Ledger(bucket).load()).tables.values() if each.qualified_name in names]
        waiting = [each for each in records if each.phase.is_waiting_for_copy]
        ended = [each for each in records if each.qualified_name in names and not each.phase.is_waiting_for_copy]
        for record in ended:
            names.discard(record.qualified_name)
            _show_copied(record)
        if not waiting:
            return
        if time.monotonic() > deadline:
            log.info("the copy goes on; see 'pgsluice tables list'", tables=",".join(each.qualified_name for each in waiting))
            return
        if time.monotonic() - told_at >= PROGRESS_INTERVAL_S:
            told_at = time.monotonic()
            for record in waiting:
                ranges = f"{record.ranges_done}/{record.ranges}"
                log.info("copying", table=record.qualified_name, phase=record.phase.value, ranges=ranges, rows=record.rows)
        await asyncio.sleep(LOOK_INTERVAL_S)


def _show_copied(record: TableRecord) -> None:
    if record.phase is Phase.FINISHED_COPY:
        sys.stdout.write(f"{record.qualified_name}: {record.rows:,} rows are copied\n")
    elif record.phase is Phase.ERRORED:
        sys.stdout.write(f"{record.qualified_name}: could not be copied: {record.error}: {record.remedy}{_next_try(record)}\n")
    sys.stdout.flush()


def _next_try(record: TableRecord) -> str:
    return f" (tried again at {record.retry_at[:19]})" if record.retry is Retry.TIMED else ""


@dataclass(frozen=True, slots=True)
class ListedTable:
    """``origin`` says why the group has the table, or has it no more. ``since`` is when it came into ``phase``, "" where that is
    not known. ``retry`` and ``retry_at`` are of one that is errored."""

    table: str
    phase: str
    origin: str
    rows: int
    since: str
    attempt: int
    error: str
    remedy: str
    retry: str
    retry_at: str


def list_tables(settings: GroupSettings, *, as_json: bool) -> None:
    """Writes one line for each table, and the orders that are open, to standard output."""
    tables, orders = asyncio.run(_list(settings))
    if as_json:
        sys.stdout.write(orjson.dumps({"tables": tables, "orders": orders}, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    sys.stdout.writelines(f"{line}\n" for line in format_tables(tables, orders))


async def _list(settings: GroupSettings) -> tuple[list[ListedTable], list[TableOrder]]:
    async with bucket_of(settings) as bucket:
        ledger, membership = await Ledger(bucket).load(), await load_membership(bucket)
        selection, orders = await load_selection(bucket), await ORDERS.load(bucket)
        applied = await AppliedPlaces.read(bucket)
    return listed_tables(ledger, membership, selection, applied), list(orders.open)


def listed_tables(
    ledger: LedgerContent, membership: Membership | None, selection: TableSelection, applied: AppliedPlaces
) -> list[ListedTable]:
    """By name; what left comes too. Phases are those that the status shows."""
    members = {} if membership is None else {member.oid: member for member in membership.members}
    listed = []
    for record in ledger.tables.values():
        member = members.get(record.oid)
        name = (record.schema, record.table) if member is None else (member.schema, member.table)
        chosen = name if member is None else member.chosen_name
        is_errored = record.phase is Phase.ERRORED
        phase, since = applied.phase_since(record, ledger.snapshot)
        listed.append(
            ListedTable(
                table=".".join(name),
                phase=phase.value,
                origin=_origin(selection, name, chosen),
                rows=record.rows,
                since=since,
                attempt=record.attempt,
                error=record.error,
                remedy=record.remedy,
                retry=record.retry.value if is_errored else "",
                retry_at=record.retry_at if is_errored else "",
            )
        )
    for oid, member in members.items():
        if oid not in ledger.tables:
            name, origin = (member.schema, member.table), _origin(selection, (member.schema, member.table), member.chosen_name)
            listed.append(ListedTable(".".join(name), "streamed", origin, 0, "", 0, "", "", "", ""))
    return sorted(listed, key=lambda table: table.table)


def _origin(selection: TableSelection, name: tuple[str, str], chosen: tuple[str, str]) -> str:
    def fits(texts: Sequence[str], schema: str, table: str) -> bool:
        return any(TablePattern.parse(text).matches(schema, table) for text in texts)

    if fits(selection.removed, *name) and not fits(selection.added, *name):
        return "removed"
    if fits(selection.added, *name):
        return "added"
    if fits(selection.configured, *name) or not selection.configured:
        return "configuration"
    return f"renamed, was {'.'.join(chosen)}" if chosen != name and fits(selection.configured, *chosen) else "-"


_HEADINGS = ("table", "phase", "from", "rows", "attempt", "since")


def format_tables(tables: Sequence[ListedTable], orders: Sequence[TableOrder]) -> list[str]:
    rows = [
        (table.table, table.phase, table.origin, f"{table.rows:,}", str(table.attempt), table.since[:19] or "-")
        for table in tables
    ]
    headings, *lines = format_columns(_HEADINGS, rows, numbers=(3, 4))
    shown = [headings]
    for table, line in zip(tables, lines, strict=True):
        shown.append(line)
        if table.error:
            again = {"timed": f"; tried again at {table.retry_at[:19]}", "manual": "; tried again when asked for"}
            remedy = f": {table.remedy}" if table.remedy else ""
            shown.append(f"    {table.error}{remedy}{again.get(table.retry, '')}")
    for waiting in orders:
        state = "is carried out" if waiting.taken_at else "waits for the replicator"
        shown.append(
            f"order {waiting.number}: {waiting.verb} {' '.join(waiting.tables)} {state}, since {waiting.ordered_at[:19]}"
        )
    return shown


@asynccontextmanager
async def bucket_of(settings: GroupSettings) -> AsyncIterator[StateBucket]:
    """The group's. Raises UsageError when there is none."""
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice tables {names.group}") as client:
        bucket = StateBucket(client, names)
        if not await bucket.exists():
            raise UsageError(
                f"group {names.group!r} has never been started on this NATS",
                f"check group and nats-url; {describe_groups(await list_groups(client))}",
            )
        yield bucket
