"""The group's logical replication slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from replicator.slot_wait import SlotPatience, wait_for_slot
from replicator.source import Source, SourceFacts
from shared import telemetry
from shared.errors import TerminalError, TransientError, UsageError
from shared.lsn import LSN, parse_lsn
from shared.names import GroupNames

PLUGIN = "pgoutput"
FAILOVER_SINCE = 17

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """One row of pg_replication_slots. ``lost`` says why the server gave the slot up, "" when it did not."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_flush: str | None
    lag_bytes: int | None
    wal_status: str | None
    lost: str
    failover: bool

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
           coalesce((j ->> 'failover')::boolean, false) AS failover
      FROM pg_replication_slots s, to_jsonb(s) j
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
            f"replication slot {slot.name} is lost ({slot.lost}): the source removed WAL that was not yet replicated",
            "run 'pgsluice drop' and start again with an empty target; raise max_slot_wal_keep_size",
        )
    if slot.active_pid is not None:
        raise TransientError(
            f"replication slot {slot.name} is in use by process {slot.active_pid} of the source",
            "stop the other replicator of this group, or wait until the server notices that it is gone (wal_sender_timeout)",
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


async def check_free_slots(source: Source, names: GroupNames) -> None:
    """For a copy beside the stream: its snapshot comes from a slot of its own, for a moment. Raises TerminalError when there is
    no room for both, before anything is made."""
    [(used, most, exists)] = await source.rows(
        "counting the replication slots",
        "SELECT count(*), current_setting('max_replication_slots')::int, coalesce(bool_or(slot_name = %s), false)"
        " FROM pg_replication_slots",
        [names.slot],
    )
    needed = 1 if exists else 2
    if most - used < needed:
        raise TerminalError(
            f"the source has {most} replication slots, of which {used} are used; the group needs {needed} more, one of them"
            " for a moment",
            "raise max_replication_slots, or drop a slot that nobody uses",
        )


def check_failover(facts: SourceFacts) -> None:
    """Raises UsageError when the server is too old for failover slots."""
    if facts.major_version < FAILOVER_SINCE:
        raise UsageError(
            f"failover slots need PostgreSQL {FAILOVER_SINCE}, the source is {facts.major_version}", "set failover to false"
        )


async def warn_of_running_ahead(source: Source) -> None:
    """A failover slot protects only what its standby has: without this setting we may publish what a promoted standby lacks."""
    setting: LiteralString = "SELECT current_setting('synchronized_standby_slots', true)"
    [(standbys,)] = await source.rows("looking at the settings of the source", setting)
    if not standbys:
        log.warning(
            "failover is on, but synchronized_standby_slots of the source is empty: after a failover the stream may hold "
            "transactions that the new primary never had, and the group has to start again",
            remedy="ALTER SYSTEM SET synchronized_standby_slots = '<the standbys' physical slots>', then reload",
        )


def check_not_in_use(slot: ReplicationSlot) -> None:
    """Raises TerminalError while a process reads it, for a command that wants it to end."""
    if slot.active_pid is not None:
        raise TerminalError(
            f"replication slot {slot.name} is in use by process {slot.active_pid} of the source", "stop the replicator first"
        )


async def drop_slot(source: Source, names: GroupNames) -> bool:
    """Whether there was one. Raises TerminalError while it is in use or when it is not ours."""
    slot = await find_slot(source, names)
    if slot is None:
        return False
    if slot.plugin != PLUGIN:
        raise TerminalError(f"replication slot {slot.name} uses plugin {slot.plugin}", "it is not pgsluice's; drop it by hand")
    check_not_in_use(slot)
    await source.rows(f"dropping replication slot {slot.name}", "SELECT pg_drop_replication_slot(%s)", [slot.name])
    return True
