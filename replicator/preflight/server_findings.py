"""Findings about the source's server and role that no start refuses, but that cause trouble later, or stop a start that waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.source.slot import RUNS_AHEAD, RUNS_AHEAD_REMEDY, SlotNeeds, may_run_ahead
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.shared.preflight.finding import Finding, Severity, Subject
from pgsluice.shared.preflight.provider import Provider, setting_cure
from pgsluice.shared.wire.names import SOURCE_SCHEMA, GroupNames

LEAST_KEPT_MB = 1024
"""Minimum of WAL that a slot should be able to hold back: a minute of a busy server, in which a replicator can start
again."""

SHORT_IDLE_S = 300
ADVISED_KEPT = "50GB"

_SETTINGS: LiteralString = """
    SELECT current_setting('max_replication_slots')::int AS most_slots,
           current_setting('max_wal_senders')::int AS most_senders,
           (SELECT count(*) FROM pg_stat_replication)::int AS used_senders,
           coalesce((SELECT active FROM pg_replication_slots WHERE slot_name = %(slot)s), false) AS is_streaming,
           (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS kept_mb,
           (SELECT setting::bigint * CASE unit WHEN 'min' THEN 60 ELSE 1 END
              FROM pg_settings WHERE name = 'idle_replication_slot_timeout') AS idle_timeout_s,
           (SELECT CASE WHEN isfinite(rolvaliduntil) THEN to_char(rolvaliduntil, 'YYYY-MM-DD HH24:MI TZ') END
              FROM pg_roles WHERE rolname = current_user) AS valid_until
"""


_EMITTING: LiteralString = """
    SELECT p.oid::regprocedure::text AS function,
           ARRAY(SELECT DISTINCT r.rolname::text FROM pg_roles r
                  WHERE NOT r.rolsuper
                    AND (r.rolname = current_user
                         OR r.oid IN (SELECT c.proowner FROM pg_proc c JOIN pg_namespace n ON n.oid = c.pronamespace
                                       WHERE n.nspname = %(schema)s AND c.proname = %(ddl)s))
                  ORDER BY 1) AS users
      FROM pg_proc p
     WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'pg_logical_emit_message'
       AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)
     ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class _EmittingFunction:
    """A function that emits logical messages and that every role may call. ``users`` are pgsluice's roles that have the
    right to call it from PUBLIC only."""

    function: str
    users: list[str]


@dataclass(frozen=True, slots=True)
class SourceServerFacts:
    """``is_streaming``: a process reads the group's slot. ``idle_timeout_s`` is None before PostgreSQL 18,
    ``valid_until`` for a role whose password does not expire."""

    most_slots: int
    most_senders: int
    used_senders: int
    is_streaming: bool
    kept_mb: int
    idle_timeout_s: int | None
    valid_until: str | None


async def server_findings(source: Source, facts: SourceFacts, slot: str, needs: SlotNeeds, *, failover: bool) -> list[Finding]:
    """``slot`` is the group's."""
    [server] = await source.rows_of(SourceServerFacts, "looking at the settings of the source", _SETTINGS, {"slot": slot})
    if not needs.streams:
        return [*_role(server, facts)]
    found = [*_senders(server, facts, needs), *_kept_wal(server, facts), *_role(server, facts)]
    if failover and await may_run_ahead(source):
        found.append(_finding("source-failover-standbys", Severity.WARNING, RUNS_AHEAD, RUNS_AHEAD_REMEDY))
    return found


async def emitting_findings(source: Source, names: GroupNames) -> list[Finding]:
    """Returns the findings for a source whose definitions are captured: the replicator must read past the logical messages of
    every role that may emit them."""
    parameters = {"schema": SOURCE_SCHEMA, "ddl": names.in_source("ddl")}
    found = await source.rows_of(_EmittingFunction, "looking at who may emit logical messages", _EMITTING, parameters)
    if not found:
        return []
    choices = []
    for each in found:
        choices.append(f"REVOKE EXECUTE ON FUNCTION {each.function} FROM PUBLIC")
        choices += [f"GRANT EXECUTE ON FUNCTION {each.function} TO {sql.Identifier(user).as_string()}" for user in each.users]
    return [
        Finding(
            "source-logical-messages",
            Severity.WARNING,
            Subject.SOURCE,
            "every role can emit logical messages (pg_logical_emit_message), of up to a GiB each: the replicator must receive"
            " them before it can ignore them",
            f"let only roles that need it emit them: {'; '.join(choices)}",
            choices=tuple(choices),
        )
    ]


def _finding(check: str, severity: Severity, fact: str, remedy: str, statements: tuple[str, ...] = ()) -> Finding:
    return Finding(check, severity, Subject.SOURCE, fact, remedy, statements)


def _senders(server: SourceServerFacts, facts: SourceFacts, needs: SlotNeeds) -> Iterator[Finding]:
    """Walsenders: one for the stream, and one for the moment in which a copy takes its snapshot."""
    needed = needs.missing(exists=server.is_streaming)
    free = server.most_senders - server.used_senders
    if free >= needed and server.most_senders >= server.most_slots:
        return
    advised = max(10, server.most_slots, server.used_senders + needed)
    cure = setting_cure(facts.provider, "max_wal_senders", str(advised), restart=True)
    if free < needed:
        yield Finding(
            "source-free-senders",
            Severity.ERROR,
            Subject.SOURCE,
            f"the source has {server.most_senders} walsenders (max_wal_senders), of which {server.used_senders} are used; the"
            f" group needs {needed} more",
            f"{cure.remedy}; or stop a replica",
            cure.statements,
            restart=True,
        )
    else:
        yield Finding(
            "source-senders-below-slots",
            Severity.WARNING,
            Subject.SOURCE,
            f"max_wal_senders ({server.most_senders}) is less than max_replication_slots ({server.most_slots}): not all slots can"
            " be read at the same time",
            cure.remedy,
            cure.statements,
            restart=True,
        )


def _kept_wal(server: SourceServerFacts, facts: SourceFacts) -> Iterator[Finding]:
    check, name = "source-kept-wal", "max_slot_wal_keep_size"
    cure = setting_cure(facts.provider, name, ADVISED_KEPT, restart=False)
    if server.kept_mb < 0:
        fact = f"{name} is -1: while the replicator is down, the source retains WAL until its disk is full"
        if facts.provider is Provider.AZURE:
            yield _finding(check, Severity.WARNING, fact, "Azure does not let users set it: monitor the server's storage")
        else:
            yield _finding(check, Severity.WARNING, fact, f"set a limit that fits the disk: {cure.remedy}", cure.statements)
    elif server.kept_mb == 0:
        fact = f"{name} is 0: a slot is lost at the first checkpoint after its replicator lags"
        yield _finding(check, Severity.ERROR, fact, cure.remedy, cure.statements)
    elif server.kept_mb < LEAST_KEPT_MB:
        fact = f"{name} is {server.kept_mb} MB: a replicator that is down for long loses its slot, and the group starts again"
        yield _finding(check, Severity.WARNING, fact, cure.remedy, cure.statements)
    if server.idle_timeout_s is not None and 0 < server.idle_timeout_s <= SHORT_IDLE_S:
        name = "idle_replication_slot_timeout"
        cure = setting_cure(facts.provider, name, "0", restart=False)
        fact = f"{name} is {server.idle_timeout_s} s: a replicator that is down for so long loses its slot"
        yield _finding("source-idle-timeout", Severity.WARNING, fact, cure.remedy, cure.statements)


def _role(server: SourceServerFacts, facts: SourceFacts) -> Iterator[Finding]:
    if server.valid_until is not None:
        statement = f"ALTER ROLE {facts.role} VALID UNTIL 'infinity'"
        fact = f"the password of role {facts.user!r} expires ({server.valid_until}): no start succeeds from then on"
        yield _finding("source-role-expires", Severity.WARNING, fact, statement, (statement,))
