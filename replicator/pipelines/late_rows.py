"""Measures the border up to which no row can come late.

A column that is set to ``now()`` holds the time at which the transaction *began*. One that began before a run and
commits after it leaves rows before the checkpoint, which no later run would read. So before the run's snapshot is taken
the begin of the oldest open transaction in the database is read: rows from there on are read again by
the next run.

- All sessions are relevant, whatever they did so far: one that executed BEGIN may still write, with its old ``now()``.
  The server takes a session from the list after its transaction can be seen, so the snapshot includes transactions that
  are not listed.
- SLACK is subtracted. A session shows its transaction a moment after it took the time, and a column may contain the
  time without its fraction: ``timestamptz(3)``, ``date_trunc('second', now())``.
- The begin of a prepared transaction is unknown. While there is one the border stays where it was. So it does while a
  session hides what it does (``track_activities``).
- A standby does not know the transactions of its primary, and other roles' are shown to ``pg_read_all_stats`` alone. Then, and
  for columns of other types, a user has to configure how late rows can be: the overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgsluice.replicator.pipelines.key_ranges import QuerySql
from pgsluice.replicator.pipelines.pipeline import WriteMode
from pgsluice.replicator.pipelines.query_reader import QueryReader
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.errors import TerminalError, UsageError

EVERYTHING = "-infinity"
"""A border where nothing is known to be complete."""
SLACK = "5 s"
NONE_LATE = "0"
"""The overlap for no late rows."""

_MEASURED_TYPE = "timestamp with time zone"
_INTERVAL_TYPES = ("timestamp", "date")
_NUMBER_TYPES = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_LAST_OF_ALL = ("infinity", "nan")
_DOING = "looking for open transactions"

_MAY_MEASURE: LiteralString = """
    SELECT NOT pg_is_in_recovery(), pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), current_user::text
"""

_OLDEST: LiteralString = """
    SELECT (least(min(xact_start), statement_timestamp()) - %(slack)s::interval)::text, statement_timestamp()::text,
           count(*) FILTER (WHERE state = 'disabled')
      FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
"""

_PREPARED: LiteralString = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Measurability:
    """The conditions under which this server shows this role all open transactions."""

    is_primary: bool
    may_read: bool
    role: str

    @property
    def obstacle(self) -> str:
        """The obstacle as the end of a sentence; "" without one."""
        if not self.is_primary:
            return "the source is a standby, which does not know the transactions of its primary"
        if not self.may_read:
            return f"role {self.role!r} may not see when transactions of others began"
        return ""

    @property
    def remedy(self) -> str:
        grant = f'GRANT pg_read_all_stats TO "{self.role}", or ' if self.is_primary else ""
        return f"{grant}set the longest delay of late rows, like 'overlap: 10m'"


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """``oldest`` is when the oldest one began, as far as the server shows it; ``at`` is when it was asked. ``unseen`` counts
    sessions and prepared transactions of which that is not known."""

    measurability: Measurability
    oldest: str
    at: str
    unseen: int

    @property
    def horizon_s(self) -> float | None:
        """Age in seconds of the oldest one; None if unknown."""
        if self.measurability.obstacle or self.unseen:
            return None
        return (datetime.fromisoformat(self.at) - datetime.fromisoformat(self.oldest)).total_seconds()


async def measurability(source: Source) -> Measurability:
    [facts] = await source.rows(_DOING, _MAY_MEASURE)
    return Measurability(*facts)


async def look(source: Source) -> OpenTransactions:
    """Reads open transactions. Call it before the run's snapshot is taken, outside of a transaction: the server shows
    the same list until its end."""
    facts = await measurability(source)
    # In this sequence, each with a separate statement: a session becomes a prepared transaction, never the other way.
    [(oldest, at, hidden)] = await source.rows(_DOING, _OLDEST, {"slack": SLACK})
    [(prepared,)] = await source.rows(_DOING, _PREPARED)
    return OpenTransactions(facts, str(oldest), str(at), int(hidden) + int(prepared))


async def measured_border(reader: QueryReader, query: QuerySql, transactions: OpenTransactions, earlier: str) -> str:
    """Returns the incremental key from which on rows can still come; "" for a column without times. ``earlier`` is the
    border of the run before, "" without. Raises UsageError when the border of late rows is unknown."""
    overlap = query.pipeline.overlap
    if not is_time(query):
        _check_overlap(query)
        return ""
    facts = transactions.measurability
    if facts.obstacle:
        if not overlap:
            raise UsageError(f"how late rows come cannot be measured: {facts.obstacle}", facts.remedy)
        return await _earlier(reader, query, transactions.at)
    if transactions.unseen:
        log.warning(
            "when the oldest transaction began is not known, so the next run reads from an earlier place",
            unseen=transactions.unseen,
        )
        return earlier or EVERYTHING
    return await _earlier(reader, query, transactions.oldest)


async def border_behind(reader: QueryReader, query: QuerySql, last: str) -> str:
    """Returns the border for a column without times, by the last value that was read; "" if no overlap is configured.
    Raises TerminalError when no row can come after that."""
    if last.lower() in _LAST_OF_ALL and _overlap_kind(_incremental_type(query)):
        raise TerminalError(
            f"incremental-key {query.pipeline.incremental_key!r} of pipeline '{query.pipeline.name}' has the value {last}, which"
            " no value comes after, so no later run would find a row",
            "leave such rows out in the query, and run it with --full where it was read before",
        )
    return "" if query.pipeline.overlap == NONE_LATE else await _earlier(reader, query, last)


def is_time(query: QuerySql) -> bool:
    """Returns whether the incremental key can be compared with when transactions began."""
    return _bare(_incremental_type(query)) == _MEASURED_TYPE


async def _earlier(reader: QueryReader, query: QuerySql, value: str) -> str:
    overlap = query.pipeline.overlap
    if overlap in ("", NONE_LATE):
        return value
    return str(await reader.value(query.earlier(value, overlap, _overlap_kind(_incremental_type(query)))))


def _incremental_type(query: QuerySql) -> str:
    return next(column.type_name for column in query.table.columns if column.name == query.pipeline.incremental_key)


def _check_overlap(query: QuerySql) -> None:
    pipeline, type_name = query.pipeline, _incremental_type(query)
    name = f"incremental-key {pipeline.incremental_key!r} of pipeline '{pipeline.name}'"
    if not pipeline.overlap:
        example = "'overlap: 10m'" if _overlap_kind(type_name) == "interval" else "'overlap: 1000'"
        raise UsageError(
            f"{name} is of type {type_name}, for which the delay of late rows cannot be measured",
            f"take a column of type {_MEASURED_TYPE}, or set it, like {example}; 'overlap: 0' means that no row comes late",
        )
    if pipeline.overlap != NONE_LATE and not _overlap_kind(type_name):
        raise UsageError(f"{name} is of type {type_name}, from which no overlap can be taken", "say 'overlap: 0'")
    if pipeline.overlap != NONE_LATE and pipeline.write is WriteMode.APPEND:
        raise UsageError(f"{name} has an overlap, and rows that are read twice would be appended twice", "say 'write: merge'")


def _overlap_kind(type_name: str) -> str:
    bare = _bare(type_name)
    if bare.startswith(_INTERVAL_TYPES):
        return "interval"
    return "numeric" if bare in _NUMBER_TYPES else ""


def _bare(type_name: str) -> str:
    """Returns the type without precision: timestamp(3) with time zone."""
    head, _, rest = type_name.partition("(")
    return head + rest.partition(")")[2] if rest else type_name
