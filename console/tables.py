"""``pgsluice tables``: commands about a group's tables while it streams, and the state of each table.

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
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.broker.table_orders import ORDERS, OrderVerb, TableOrder, TableOutcome, give_order
from pgsluice.shared.broker.table_selection import TableSelection, load_selection
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, worker_unit
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.pipelines.run_records import load_pipeline
from pgsluice.shared.units.applied_places import AppliedPlaces
from pgsluice.shared.units.unit_wait import UnitWait, described
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

PROGRESS_INTERVAL_S = 5.0

_COPYING = (OrderVerb.ADD, OrderVerb.RECOPY, OrderVerb.RETRY)
"""Commands that wait for copies."""

_START = "start the replicator, which executes it; --no-wait sends the request without waiting"

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class TableWish:
    """A user's command. ``wait_s`` is how long at most to wait for it, None for not at all."""

    verb: OrderVerb
    tables: tuple[str, ...]
    without_copy: bool
    wait_s: float | None

    @classmethod
    def of(cls, verb: str, tables: tuple[str, ...], *, without_copy: bool, wait_s: float | None) -> TableWish:
        return cls(OrderVerb(verb), tables, without_copy, wait_s)


def order(settings: GroupSettings, wish: TableWish) -> None:
    """Raises UsageError for what is no table, no group, or a group without a replicator; TerminalError when the replicator
    refuses a table, or can no longer carry the order out; TransientError when it has not done so in time: the order stays."""
    for text in wish.tables:
        _check(text)
    asyncio.run(_order(settings, wish))


def _check(text: str) -> None:
    try:
        TablePattern.parse(text)
    except ValueError as error:
        raise UsageError(f"{text!r} {error}", "name tables like 'orders', 'sales.orders' or 'sales.*'") from None


async def _order(settings: GroupSettings, wish: TableWish) -> None:
    async with bucket_of(settings) as bucket:
        await check_takes_orders(bucket)
        number = await give_order(bucket, wish.verb, wish.tables, without_copy=wish.without_copy)
        if wish.wait_s is None:
            log.info("the request is stored; see 'pgsluice tables list'", order=wish.verb.value, tables=",".join(wish.tables))
            return
        deadline = time.monotonic() + wish.wait_s
        done = await _done(bucket, number, wish.wait_s)
        for outcome in done.outcomes:
            _show(outcome)
        if wish.verb in _COPYING:
            await _FollowedCopies(bucket, done.outcomes).wait(max(0.0, deadline - time.monotonic()))
        if refused := [outcome.table for outcome in done.outcomes if outcome.is_refused]:
            raise TerminalError(f"refused: {', '.join(refused)}", "see above")


async def check_takes_orders(bucket: StateBucket) -> None:
    """Raises UsageError for a group that a worker or a SQL pipeline fills: no replicator ever carries its orders out."""
    group = bucket.names.group
    record = await bucket.read(GROUP_KEY, GroupRecord)
    publisher = None if record is None else record.value.publishing_worker
    if publisher is not None:
        raise UsageError(
            f"worker '{publisher[1]}' of group '{publisher[0]}' publishes group '{group}', which has no replicator to"
            " execute requests",
            f"send the request to group '{publisher[0]}'",
        )
    pipeline = await load_pipeline(bucket)
    if pipeline is not None:
        raise UsageError(
            f"group '{group}' is that of SQL pipeline '{pipeline.pipeline}', and has no replicator that executes requests",
            f"'pgsluice run {pipeline.pipeline} --full' reads all of its rows again",
        )


def _show(outcome: TableOutcome) -> None:
    remedy = f": {outcome.remedy}" if outcome.remedy else ""
    _say(f"{outcome.table}: {outcome.text}{remedy}")


async def _done(bucket: StateBucket, number: int, wait_s: float) -> TableOrder:
    """Returns the order when the replicator has carried it out. Raises TransientError when it has not after ``wait_s``, and what
    ``UnitWait.until`` raises."""
    found = await _load_order(bucket, number)

    async def look() -> Sequence[str] | None:
        nonlocal found
        was_taken, found = bool(found.taken_at), await _load_order(bucket, number)
        if found.taken_at and not was_taken:
            log.info("the replicator is at it")
        if found.done_at:
            return None
        reports = await read_reports(bucket)  # the replicator no longer waits for a worker that was forgotten
        return [*(worker_unit(worker) for worker in found.waits_for if worker in reports), REPLICATOR_UNIT]

    stays = "the request stays stored, and the replicator executes it as soon as possible"
    wait = UnitWait(bucket, undone="and the request is not executed", stays=stays, wait_s=wait_s)
    if (late := await wait.until(look)) is not None:
        raise _not_done(found, described(late))
    return found


async def _load_order(bucket: StateBucket, number: int) -> TableOrder:
    found = (await ORDERS.load(bucket)).order(number)
    if found is None:
        raise TransientError(f"the result of request {number} is not known any more", "see 'pgsluice tables list'")
    return found


def _not_done(order: TableOrder, waited_for: str) -> TransientError:
    if not order.taken_at:
        return TransientError(f"the request is stored, and no replicator of the group has accepted it: {waited_for}", _START)
    if order.waits_for:
        return TransientError(
            f"the request waits until every worker has applied the changes of these tables: {waited_for}",
            "start the workers, or run 'pgsluice forget' for a worker that does not come back",
        )
    return TransientError(f"the replicator is still at it: {waited_for}", "see 'pgsluice tables list'; its log shows the reason")


class _FollowedCopies:
    """The tables of an order, until each is copied or cannot be copied."""

    def __init__(self, bucket: StateBucket, outcomes: Sequence[TableOutcome]) -> None:
        self._bucket = bucket
        self._ledger = Ledger(bucket)
        self._names = {outcome.table for outcome in outcomes if not outcome.is_refused}
        self._followed: dict[int, TableRecord] = {}
        """The tables that are not copied yet, by OID, with the records that the ledger had at the last check."""
        self._lost: list[str] = []
        self._told_at = time.monotonic()

    async def wait(self, wait_s: float) -> None:
        """Returns when every copy has ended, and logs until then how far they are. Raises TerminalError when a table cannot be
        copied, once the copies of the others have ended; TransientError when a copy still runs after ``wait_s``; and what
        ``UnitWait.until`` raises."""
        stays = "the replicator continues the copy when it is started again"
        wait = UnitWait(self._bucket, undone="and the copy is not finished", stays=stays, wait_s=wait_s)
        if (late := await wait.until(self._look)) is not None:
            names = ", ".join(record.qualified_name for record in self._followed.values())
            raise TransientError(f"the copy of {names} continues: {described(late)}", "see 'pgsluice tables list'")
        if self._lost:
            raise TerminalError(f"not copied: {', '.join(self._lost)}", "see above")

    async def _look(self) -> Sequence[str] | None:
        tables = (await self._ledger.load()).tables
        for oid in [oid for oid in self._followed if oid not in tables]:
            self._lose(self._followed.pop(oid), "the group knows it no more")
        for oid, record in tables.items():
            if oid in self._followed or (record.qualified_name in self._names and record.phase is not Phase.LEFT):
                self._note(record)
        self._names.clear()  # from now on by OID: a table may be renamed
        if not self._followed:
            return None
        self._tell_progress()
        return [REPLICATOR_UNIT]

    def _note(self, record: TableRecord) -> None:
        last, is_timed = self._followed.get(record.oid), record.phase is Phase.ERRORED and record.retry is Retry.TIMED
        if record.phase.is_waiting_for_copy or is_timed:
            self._followed[record.oid] = record
            if is_timed and (last is None or last.retry_at != record.retry_at):
                _say(f"{record.qualified_name}: could not be copied: {record.error}: tried again at {record.retry_at[:19]}")
            return
        self._followed.pop(record.oid, None)
        if record.phase is Phase.ERRORED:
            self._lose(record, f"could not be copied: {record.error}: {record.remedy}")
        elif record.phase is Phase.LEFT:
            self._lose(record, "is no longer among the tables of the group")
        else:
            _say(f"{record.qualified_name}: {record.rows:,} rows are copied")

    def _lose(self, record: TableRecord, why: str) -> None:
        self._lost.append(record.qualified_name)
        _say(f"{record.qualified_name}: {why}")

    def _tell_progress(self) -> None:
        if time.monotonic() - self._told_at < PROGRESS_INTERVAL_S:
            return
        self._told_at = time.monotonic()
        for record in self._followed.values():
            ranges = f"{record.ranges_done}/{record.ranges}"
            log.info("copying", table=record.qualified_name, phase=record.phase.value, ranges=ranges, rows=record.rows)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class ListedTable:
    """``origin`` is why the group has the table, or no longer has it. ``since`` is when it came into ``phase``, ""
    where that is not known. ``retry`` and ``retry_at`` are of an errored one."""

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
    """Writes one line for each table, and the open orders, to standard output."""
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
    """Returns the tables by name, including ones that left. Phases are as in the status."""
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
        if waiting.waits_for:
            state = f"waits until these workers have applied its changes: {', '.join(waiting.waits_for)}"
        shown.append(
            f"order {waiting.number}: {waiting.verb} {' '.join(waiting.tables)} {state}, since {waiting.ordered_at[:19]}"
        )
    return shown


@asynccontextmanager
async def bucket_of(settings: GroupSettings) -> AsyncIterator[StateBucket]:
    """Opens the group's bucket. Raises UsageError for an unknown group."""
    names = GroupNames(settings.group)
    async with connected(settings.nats, f"pgsluice tables {names.group}") as client:
        bucket = StateBucket(client, names)
        if not await bucket.exists():
            raise UsageError(
                f"group {names.group!r} has never been started on this NATS",
                f"check group and nats-url; {describe_groups(await list_groups(client))}",
            )
        yield bucket
