"""The group's logical replication slot: found, checked, made and dropped.

A new slot waits for every transaction that has written and was open when it began, and the server sends nothing while
it waits. So another connection reads, periodically, which they are; and after a limit the creation is cancelled. The
server drops the unfinished slot when the statement is cancelled (manual: a slot is ephemeral until it is complete), and
when it notices that the client is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

from psycopg import sql

from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.alerts.slot_record import remedy_of_loss
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import START_AGAIN, Cause, SlotTimeoutError, TerminalError, TransientError, UsageError
from pgsluice.shared.preflight.finding import Finding, Severity, Subject
from pgsluice.shared.preflight.provider import setting_cure
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, parse_lsn

PLUGIN = "pgoutput"
FAILOVER_SINCE = 17
LOG_INTERVAL_S = 10.0
_GIVE_UP_S = 10.0
"""Time for the server to end the statement. The connection would else be closed first, which the server notices seconds
later."""
MOST_TOLD = 5

log = telemetry.logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """One row of pg_replication_slots. ``lost`` is why the server invalidated the slot, "" if it did not.
    ``safe_wal_bytes`` may be written before it does; None without a limit. ``reader`` is the address of ``active_pid``,
    None when this role may not know it. Transactions before ``catalog_xmin`` ended before any that the slot has still
    to send committed."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_flush: str | None
    lag_bytes: int | None
    wal_status: str | None
    lost: str
    failover: bool
    safe_wal_bytes: int | None = None
    reader: str | None = None
    catalog_xmin: int | None = None

    @property
    def confirmed_flush_lsn(self) -> LSN:
        return parse_lsn(self.confirmed_flush or "0/0")


# The row as JSON, because servers of different versions have different columns.
_SLOT: LiteralString = """
    SELECT s.slot_name::text AS name, s.plugin::text, s.database::text, s.active_pid,
           s.confirmed_flush_lsn::text AS confirmed_flush,
           CASE WHEN NOT pg_is_in_recovery()
                THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint END AS lag_bytes,
           s.wal_status,
           CASE WHEN s.wal_status = 'lost' OR j ->> 'invalidation_reason' IS NOT NULL OR j ->> 'conflicting' = 'true'
                THEN coalesce(j ->> 'invalidation_reason', 'wal_removed') ELSE '' END AS lost,
           coalesce((j ->> 'failover')::boolean, false) AS failover, s.safe_wal_size AS safe_wal_bytes,
           host(a.client_addr) AS reader, s.catalog_xmin::text::bigint AS catalog_xmin
      FROM pg_replication_slots s CROSS JOIN LATERAL to_jsonb(s) j LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
     WHERE s.slot_name = %s
"""


async def find_slot(source: Source, names: GroupNames) -> ReplicationSlot | None:
    found = await source.rows_of(ReplicationSlot, "looking up the replication slot", _SLOT, [names.slot])
    return found[0] if found else None


def check_slot(slot: ReplicationSlot, facts: SourceFacts) -> None:
    """Raises TerminalError when the slot cannot serve this group, TransientError while another process reads it."""
    if slot.plugin != PLUGIN or slot.database != facts.database:
        raise TerminalError(
            f"replication slot {slot.name} uses plugin {slot.plugin} in database {slot.database}",
            "it is not pgsluice's; choose another group name",
        )
    if slot.lost:
        raise TerminalError(
            f"replication slot {slot.name} is lost ({slot.lost}): the source keeps no WAL for it any more",
            f"{START_AGAIN}; before, {remedy_of_loss(slot.lost)} at the source",
        )
    if slot.active_pid is not None:
        client = f", whose client is at {slot.reader}" if slot.reader else ""
        raise TransientError(
            f"replication slot {slot.name} is in use by process {slot.active_pid} of the source{client}",
            "stop the other replicator of this group, if there is one; a connection that was lost is ended by the server when"
            " wal_sender_timeout has passed",
            Cause.LOCK,
        )


async def end_own_reader(source: Source, slot: ReplicationSlot, own: int) -> None:
    """Ends the reader of the slot if it is ``own``, the process that served this replicator before, over a connection
    that it has closed. Raises TransientError then: the server has not noticed, and is asked to end it now."""
    if slot.active_pid is None or slot.active_pid != own:
        return
    await source.rows("ending this group's earlier session", "SELECT pg_terminate_backend(%s)", [own])
    raise TransientError(
        f"replication slot {slot.name} is still held by process {own} of the source, which served this replicator over a"
        " connection that was lost",
        "it was asked to end; the slot is tried again",
        Cause.LOCK,
    )


async def create_slot(
    source: Source, names: GroupNames, facts: SourceFacts, failover: bool, patience: SlotPatience
) -> ReplicationSlot:
    """Waits for the transactions that are open in the source (manual: pg_create_logical_replication_slot). Raises
    SlotTimeoutError when they stay open for too long. ``failover`` after ``check_failover``."""
    statement: LiteralString = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    if failover:
        statement = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)"
    await source.notice_our_end()
    creating = source.rows(f"creating replication slot {names.slot}", statement, [names.slot])
    await wait_for_slot(names.slot, creating, patience)
    slot = await find_slot(source, names)
    if slot is None:
        raise TerminalError(f"replication slot {names.slot} disappeared while it was made", "start again")
    return slot


@dataclass(frozen=True, slots=True)
class SlotNeeds:
    """``streams``: the group has a slot. ``copies``: a copy in parallel to the stream takes its snapshot from a
    separate slot, for a moment; one without a stream needs none."""

    streams: bool
    copies: bool

    def missing(self, *, exists: bool) -> int:
        """Returns how many slots must be created; ``exists``: the group's exists."""
        return self.streams * (not exists) + self.streams * self.copies


@dataclass(frozen=True, slots=True)
class _SlotRoom:
    most: int
    used: int
    exists: bool
    inactive: list[str]


_SLOT_ROOM: LiteralString = """
    SELECT current_setting('max_replication_slots')::int AS most, count(*)::int AS used,
           coalesce(bool_or(slot_name = %(slot)s), false) AS exists,
           coalesce(array_agg(slot_name::text ORDER BY restart_lsn)
                        FILTER (WHERE NOT active AND NOT temporary AND slot_name <> %(slot)s), '{}') AS inactive
      FROM pg_replication_slots
"""


async def free_slot_findings(source: Source, facts: SourceFacts, names: GroupNames, needs: SlotNeeds) -> list[Finding]:
    """Returns a finding when there is no room for the slots that must be created. It names slots without a reader, the
    oldest first."""
    [room] = await source.rows_of(_SlotRoom, "counting the replication slots", _SLOT_ROOM, {"slot": names.slot})
    needed = needs.missing(exists=room.exists)
    if room.most - room.used >= needed:
        return []
    for_a_moment = ", one of them for a moment" if needs.copies else ""
    nobody_reads = f" (unused: {', '.join(room.inactive[:MOST_TOLD])})" if room.inactive else ""
    cure = setting_cure(facts.provider, "max_replication_slots", str(max(10, room.used + needed)), restart=True)
    return [
        Finding(
            "source-free-slots",
            Severity.ERROR,
            Subject.SOURCE,
            f"the source has {room.most} replication slots (max_replication_slots), of which {room.used} are used{nobody_reads};"
            f" the group needs {needed} more{for_a_moment}",
            f"{cure.remedy}; or drop an unused slot",
            cure.statements,
            tuple(_drop_statement(name) for name in room.inactive),
            restart=True,
        )
    ]


def _drop_statement(slot: str) -> str:
    return sql.SQL("SELECT pg_drop_replication_slot({})").format(sql.Literal(slot)).as_string()


def check_failover(facts: SourceFacts) -> None:
    """Raises UsageError when the server is too old for failover slots."""
    if facts.major_version < FAILOVER_SINCE:
        raise UsageError(
            f"failover slots need PostgreSQL {FAILOVER_SINCE}, the source is {facts.major_version}", "set failover to false"
        )


RUNS_AHEAD = (
    "failover is on, but synchronized_standby_slots of the source is empty: after a failover the stream can contain "
    "transactions that the new primary never had, and the group must start over"
)
RUNS_AHEAD_REMEDY = (
    "ALTER SYSTEM SET synchronized_standby_slots = '<the standbys' physical slots>', then reload; and sync_replication_slots = on"
    " at each standby"
)


async def may_run_ahead(source: Source) -> bool:
    """Returns whether a failover slot may run ahead: it protects only data that its standby has, and without this
    setting pgsluice may publish data that a promoted standby lacks."""
    setting: LiteralString = "SELECT current_setting('synchronized_standby_slots', true)"
    [(standbys,)] = await source.rows("looking at the settings of the source", setting)
    return not standbys


async def warn_of_running_ahead(source: Source) -> None:
    """Logs one line when it ``may_run_ahead``."""
    if await may_run_ahead(source):
        log.warning(RUNS_AHEAD, remedy=RUNS_AHEAD_REMEDY)


def check_not_in_use(slot: ReplicationSlot) -> None:
    """Raises TerminalError while a process reads it, for a command that wants it to end."""
    if slot.active_pid is not None:
        raise TerminalError(
            f"replication slot {slot.name} is in use by process {slot.active_pid} of the source", "stop the replicator first"
        )


async def drop_slot(source: Source, names: GroupNames) -> bool:
    """Drops the slot; returns whether it existed. Raises TerminalError while it is in use or when it is not the
    group's."""
    slot = await find_slot(source, names)
    if slot is None:
        return False
    if slot.plugin != PLUGIN:
        raise TerminalError(f"replication slot {slot.name} uses plugin {slot.plugin}", "it is not pgsluice's; drop it by hand")
    check_not_in_use(slot)
    await source.rows(f"dropping replication slot {slot.name}", "SELECT pg_drop_replication_slot(%s)", [slot.name])
    return True


# Every transaction that has an id holds a lock on it, which every role may see. pg_stat_activity shows null for other
# roles' sessions without the right to read them.
_OPEN_TRANSACTIONS: LiteralString = """
    SELECT l.pid, p.gid, coalesce(p.database, a.datname)::text AS database, nullif(a.application_name, '') AS application,
           extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start))::int AS age_s
      FROM pg_locks l
      LEFT JOIN pg_stat_activity a ON a.pid = l.pid
      LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
     WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
       AND l.pid IS DISTINCT FROM pg_backend_pid()
     ORDER BY age(l.transactionid) DESC
"""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of the source. ``pid`` is None for a prepared one, which has a ``gid``; the other fields are unset
    when this role may not know them."""

    pid: int | None
    gid: str | None
    database: str | None
    application: str | None
    age_s: int | None

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.gid is None else f"prepared transaction '{self.gid}'"
        facts = [f"database {self.database}"] if self.database else []
        facts += [f"application '{self.application}'"] if self.application else []
        facts += [f"open for {self.age_s} s"] if self.age_s is not None else []
        return f"{who} ({', '.join(facts) or 'of another role'})"


@dataclass(frozen=True, slots=True)
class SlotPatience:
    """``timeout_s`` bounds the wait; ``source`` is asked meanwhile."""

    source: PostgresSettings
    timeout_s: float


async def wait_for_slot(slot: str, creating: Coroutine[Any, Any, T], patience: SlotPatience) -> T:
    """Returns the result of ``creating``. Raises SlotTimeoutError, with the slot gone, when that takes too long."""
    timeout_s = patience.timeout_s
    began = time.monotonic()
    task = asyncio.ensure_future(creating)
    try:
        while True:
            rest_s = timeout_s - (time.monotonic() - began)
            done, _ = await asyncio.wait({task}, timeout=max(0.0, min(LOG_INTERVAL_S, rest_s)))
            if done:
                return task.result()
            told = await _who_is_open(patience.source)
            waited_s = round(time.monotonic() - began, 1)
            if waited_s >= timeout_s:
                raise _timeout(slot, timeout_s, told)
            log.warning("the new slot still waits for open transactions", slot=slot, waited_s=waited_s, transactions=told)
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=_GIVE_UP_S)
        await cancel({task})


def _timeout(slot: str, timeout_s: float, told: str) -> SlotTimeoutError:
    return SlotTimeoutError(
        f"replication slot {slot} was not made within {timeout_s:g} s: the source waits for transactions that are open, {told}",
        "let them end, or end them with pg_terminate_backend or ROLLBACK PREPARED; then start again, with a longer slot-timeout"
        " where such transactions are usual",
    )


async def open_transactions(source: Source) -> list[OpenTransaction]:
    """Returns transactions that have written, the oldest first."""
    return await source.rows_of(OpenTransaction, "asking for open transactions", _OPEN_TRANSACTIONS)


async def _who_is_open(settings: PostgresSettings) -> str:
    """Returns the oldest open transactions, in words. No query text, which holds values."""
    try:
        source = await Source.connect(settings)
        try:
            found = await open_transactions(source)
        finally:
            await source.close()
    except TransientError as error:
        return f"which could not be asked for ({error.fact})"
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return ", ".join(map(str, found[:MOST_TOLD])) + more if found else "none that can be seen now"
