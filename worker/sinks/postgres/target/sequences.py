"""Sequences that belong to columns of target tables (serial and identity columns)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.target.connection import Connection

_OWNED = """
FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND d.deptype IN ('a', 'i')
"""
_FIND = (
    "SELECT a.attname, s.seqrelid, n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE'),"
    " has_sequence_privilege(c.oid, 'SELECT') AND has_sequence_privilege(c.oid, 'UPDATE')"
    + _OWNED.replace(
        "WHERE",
        "JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
        " JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE",
    )
    + " AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)"
)
_ADVANCE = """
SELECT setval(s.seqrelid,
              CASE WHEN s.seqincrement > 0 THEN least(used.highest, s.seqmax) ELSE greatest(used.lowest, s.seqmin) END)
FROM pg_sequence s
CROSS JOIN (SELECT max({column})::bigint AS highest, min({column})::bigint AS lowest FROM {rows} AS used_rows) AS used
CROSS JOIN (SELECT last_value, is_called::int AS called FROM {name}) AS last
WHERE s.seqrelid = {sequence}
  AND CASE WHEN s.seqincrement > 0 THEN used.highest >= s.seqmin AND (used.highest, 1) > (last.last_value, last.called)
           ELSE used.lowest <= s.seqmax AND (used.lowest, last.called) < (last.last_value, 1) END
"""
_WHOLE_NUMBERS = frozenset({20, 21, 23})
"""OIDs of bigint, smallint and integer."""

NAMED_TABLES = 10
"""Number of tables in one line of the log."""

_log = telemetry.logger(__name__)

_RESTART = "SELECT setval(s.seqrelid, s.seqstart, false)" + _OWNED


@dataclass(frozen=True, slots=True)
class OwnedSequence:
    """The sequence ``oid``, which gives the column ``column`` (an index of the source's columns) its values. ``place`` is its
    schema and name."""

    column: int
    oid: int
    place: tuple[str, str]


def owned_sequences(connection: Connection, columns: Sequence[str], oid: int) -> tuple[OwnedSequence, ...]:
    """Returns the sequences of ``columns`` of the target's table ``oid``. Raises TerminalError if this role may not
    read how far one is: it would be moved back."""
    found, lacking, grants = {}, list[str](), list[str]()
    role = sql.Identifier(connection.info.user).as_string()
    for column, sequence, schema, name, may_look_up, may_move in connection.execute(_FIND, [oid]).fetchall():
        if column not in columns:
            continue
        found[column] = sequence, (schema, name)
        if not (may_look_up and may_move):
            lacking.append(f"{schema}.{name}")
        if not may_look_up:
            grants.append(f"GRANT USAGE ON SCHEMA {sql.Identifier(schema).as_string()} TO {role}")
        if not may_move:
            grants.append(f"GRANT SELECT, UPDATE ON SEQUENCE {sql.Identifier(schema, name).as_string()} TO {role}")
    if grants:
        statements = list(dict.fromkeys(grants))
        raise TerminalError(
            f"the target's role {connection.info.user!r} may not read and move {', '.join(lacking)}, which target-sync-sequences"
            " needs",
            f"run there: {'; '.join(statements)}",
            statements=statements,
        )
    return tuple(OwnedSequence(i, *found[name]) for i, name in enumerate(columns) if name in found)


def lacks_sequence(table: Table, sequences: Iterable[OwnedSequence]) -> bool:
    """Returns whether a column of the target may need a sequence to take over from the source: one that is an identity
    column there, or a whole number that is the key on its own, as serial columns are (the stream does not contain
    defaults)."""
    owned = {sequence.column for sequence in sequences}
    serial = [i for i in table.key if len(table.key) == 1 and table.columns[i].type_oid in _WHOLE_NUMBERS]
    identity = [i for i, column in enumerate(table.columns) if column.identity]
    return not owned.issuperset(identity) or (not owned and bool(serial))


def advance_statement(sequence: OwnedSequence, rows: sql.Composable, column: str) -> sql.Composed:
    """Moves the sequence on to the value in ``column`` of ``rows`` that is farthest in its direction, never back. A rollback does
    not undo it. One process at a time may do that."""
    return sql.SQL(_ADVANCE).format(
        column=sql.Identifier(column),
        rows=rows,
        sequence=sql.Literal(sequence.oid),
        name=sql.Identifier(*sequence.place),
    )


def restart_sequences(connection: Connection, oid: int) -> None:
    """Restarts like TRUNCATE … RESTART IDENTITY, but a rollback does not undo it."""
    connection.execute(_RESTART, [oid])


class MissingSequences:
    """Tables that may need a sequence to take over from the source, and whether that was logged."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], bool] = {}

    def note(self, table: Table, place: tuple[str, str], sequences: Iterable[OwnedSequence]) -> None:
        """``place`` is the target's table for ``table``, by schema and name; ``sequences`` are its existing ones."""
        if lacks_sequence(table, sequences):
            self._logged.setdefault(place, False)

    def log(self) -> None:
        """Logs one line for all tables noted since the one before."""
        new = [".".join(place) for place, is_logged in self._logged.items() if not is_logged]
        if not new:
            return
        self._logged = dict.fromkeys(self._logged, True)
        _log.warning(
            "tables at the target have no sequence: target-sync-sequences makes none, and where the source has one the target"
            " needs it to take over",
            tables=", ".join(new[:NAMED_TABLES]),
            more=max(0, len(new) - NAMED_TABLES),
        )
