"""Loads copied rows into their tables: the source's COPY text unchanged and unparsed.

One transaction notes the messages as loaded and copies their text, table by table. Where COPY cannot go straight into
the table, the text goes into a temporary one and from there by INSERT: when the target generates a column that the
source sends, and when a row meets one with its key (the table was not empty), which is then overwritten, by a
pipeline's run only where it differs. Rows of a run that replaces all others go into the table where these wait
(``merge.replacement``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString, NamedTuple

import psycopg
from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.rows.copy_text import join_lines, split_lines
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.refusals import Refusals
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.postgres.fold.piece import PieceKind
from pgsluice.worker.sinks.postgres.merge.refused_rows import RefusalBound, check_table, refused_rows
from pgsluice.worker.sinks.postgres.merge.replacement import Replacements
from pgsluice.worker.sinks.postgres.merge.staging import copy_into, copy_text
from pgsluice.worker.sinks.postgres.merge.statements import (
    delete_statement,
    identity_change_query,
    merge_statements,
    stage_columns,
    stage_query,
    upsert_statements,
)
from pgsluice.worker.sinks.postgres.own.applied import CopiedMessages
from pgsluice.worker.sinks.postgres.sessions import PostgresTaskSession
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import MEETS_ANOTHER, PieceError, reason
from pgsluice.worker.sinks.postgres.target.table import TargetTable, identity_error

_STAGE = sql.Identifier("pg_temp", "copied_rows")

# Finds triggers that fire in this session before a row is inserted, and are not internal.
_LEAVING_OUT: LiteralString = """
    SELECT EXISTS (SELECT FROM pg_trigger
                    WHERE (tgrelid = %s OR tgrelid IN (SELECT relid FROM pg_partition_tree(%s)))
                      AND NOT tgisinternal AND tgtype & 7 = 7
                      AND tgenabled IN
                          ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END))
"""


class _CopyText(NamedTuple):
    """``rows`` is how many are in ``blocks``, as the source counted them."""

    blocks: Sequence[bytes | memoryview]
    rows: int


def load(session: PostgresTaskSession, messages: CopiedMessages, copied: Sequence[CopiedRows]) -> None:
    """Loads those of ``copied`` that are not loaded yet, all or nothing. Makes tables that are missing, for messages without
    rows too. Raises PieceError."""
    for table in {rows.table for rows in copied if rows.begins_run}:
        _make_keyed(session, table)
    for table in {rows.table for rows in copied if rows.restarts and not rows.begins_run}:
        _make(session, table)
    targets = _targets(session, messages, copied)
    while targets:
        try:
            _load(session, messages, [rows for rows in copied if rows.data], targets)
            return
        except PieceError as error:
            is_met = isinstance(error.cause, MEETS_ANOTHER) and error.table.key
            if not is_met or error.table in session.not_empty:
                raise
            session.not_empty.add(error.table)


def find_refused(
    session: PostgresTaskSession, messages: CopiedMessages, copied: Sequence[CopiedRows], most: int
) -> list[Rejection]:
    """Finds the rows of ``copied`` that the target refuses, at most ``most`` + 1; loads nothing. Raises PieceError."""
    session.forget()  # a row must not be refused for what its table was like earlier
    rejections: list[Rejection] = []
    bound = RefusalBound(most)
    table = copied[0].table
    try:
        targets = _targets(session, messages, copied)
        with session.connection().transaction():
            claimed = messages.claim(session.connection(), {rows.sequence for rows in copied})
            for table, target in targets.items():
                rows = [each for each in copied if each.table == table and each.sequence in claimed]
                for deletes in (False, True):
                    chosen = [each for each in rows if each.deletes is deletes]
                    rejections += _find_refused(session, target, chosen, bound, deletes=deletes)
            raise psycopg.Rollback
    except psycopg.Error as error:
        raise PieceError(table, error) from None
    return rejections


def _find_refused(
    session: PostgresTaskSession, target: TargetTable, copied: Sequence[CopiedRows], bound: RefusalBound, *, deletes: bool
) -> list[Rejection]:
    places = [copied_position(rows.sequence, rows.row_number(row)) for rows in copied for row in range(rows.rows)]
    lines = [line for rows in copied for line in split_lines(bytes(rows.data))]
    connection, is_empty, refusals = session.connection(), target.table not in session.not_empty, Refusals()

    def load_range(low: int, high: int) -> None:
        with connection.transaction():
            text = _CopyText([join_lines(lines[low:high])], high - low)
            if deletes:
                _delete_rows(connection, target, text)
            else:
                _load_table(connection, target, text, is_empty=is_empty)
        refusals.note_taken()

    rejections = []
    for row, error in refused_rows(0, len(lines), load_range, bound):
        rejections.append(Rejection(places[row], reason(error, target.table)))
        refusals.note_refused(rejections[-1].reason)
    check_table(target.table, refusals)
    return rejections


def _make(session: PostgresTaskSession, table: Table) -> None:
    try:
        session.make_table(table)
    except psycopg.Error as error:
        raise PieceError(table, error) from None


def _make_keyed(session: PostgresTaskSession, table: Table) -> None:
    try:
        session.make_keyed_table(table)
    except psycopg.Error as error:
        raise PieceError(table, error) from None


def _targets(session: PostgresTaskSession, messages: CopiedMessages, copied: Sequence[CopiedRows]) -> dict[Table, TargetTable]:
    """Returns the destinations of the rows in ``copied``. Rows of a run that replaces all others wait."""
    waiting = Replacements(messages.group, messages.worker).waiting
    found: dict[Table, TargetTable] = {}
    for rows in copied:
        if not (rows.restarts or rows.begins_run or rows.mark.ends) and rows.table not in found:
            target = _target(session, rows.table)
            found[rows.table] = waiting(target) if rows.mark.replaces else target
    return found


def _target(session: PostgresTaskSession, table: Table) -> TargetTable:
    try:
        return session.target_table(table, copied=True)
    except psycopg.Error as error:
        raise PieceError(table, error) from None


def _load(
    session: PostgresTaskSession, messages: CopiedMessages, copied: Sequence[CopiedRows], targets: dict[Table, TargetTable]
) -> None:
    table = next(iter(targets))
    try:
        with session.connection().transaction():
            claimed = messages.claim(session.connection(), {rows.sequence for rows in copied})
            found: dict[tuple[Table, bool], list[CopiedRows]] = {}
            for rows in copied:
                if rows.sequence in claimed:
                    found.setdefault((rows.table, rows.deletes), []).append(rows)
            unchanged = 0
            for (table, deletes), some in found.items():
                text = _CopyText([each.data for each in some], sum(each.rows for each in some))
                if deletes:
                    _delete_rows(session.connection(), targets[table], text)
                elif table in session.not_empty and _may_come_again(some):
                    unchanged += text.rows - _load_different(session.connection(), targets[table], text)
                else:
                    _load_table(session.connection(), targets[table], text, is_empty=table not in session.not_empty)
            if unchanged:
                messages.note_unchanged(session.connection(), max(claimed), unchanged)
    except psycopg.Error as error:
        raise PieceError(table, error) from None


def _may_come_again(copied: Sequence[CopiedRows]) -> bool:
    """Returns whether all are rows of a run that an earlier run may have brought."""
    return all(rows.mark.run and not rows.mark.replaces for rows in copied)


def _load_different(connection: Connection, target: TargetTable, text: _CopyText) -> int:
    """Writes rows that are new or different; returns their number."""
    _stage(connection, target, text)
    _check_identity(connection, target, PieceKind.UPSERT)
    written = sum(connection.execute(statement).rowcount for statement in upsert_statements(target, _STAGE, only_different=True))
    connection.execute(sql.SQL("DROP TABLE {}").format(_STAGE))
    return written


def _load_table(connection: Connection, target: TargetTable, text: _CopyText, *, is_empty: bool) -> None:
    if is_empty and target.takes_whole_rows:
        taken = copy_text(connection, target.copy_statement, text.blocks)
        if taken != text.rows and not _has_trigger(connection, target):
            raise _count_error(target, text, taken)
        return
    _stage(connection, target, text)
    kind = PieceKind.INSERT if is_empty else PieceKind.UPSERT
    _check_identity(connection, target, kind)
    for statement in merge_statements(target, kind, _STAGE, has_merge=False):
        connection.execute(statement)
    connection.execute(sql.SQL("DROP TABLE {}").format(_STAGE))


def _check_identity(connection: Connection, target: TargetTable, kind: PieceKind) -> None:
    check = identity_change_query(target, kind, _STAGE)
    if check is not None and connection.execute(check).rowcount:
        raise identity_error(target)


def _has_trigger(connection: Connection, target: TargetTable) -> bool:
    """Returns whether the target has a trigger that may leave out rows."""
    return connection.execute(_LEAVING_OUT, [target.oid, target.oid]).fetchone() == (True,)


def _count_error(target: TargetTable, text: _CopyText, taken: int) -> TerminalError:
    fact = f"{text.rows} copied rows went into table '{target.table.qualified_name}', and the target counted {taken}"
    return TerminalError(fact, "the target keeps none of them; read its log, and start again")


def _delete_rows(connection: Connection, target: TargetTable, text: _CopyText) -> None:
    if not target.table.key:
        fact = f"rows of table '{target.table.qualified_name}' must be deleted, and its routes leave no key"
        raise TerminalError(fact, "let the key's columns through")
    _stage(connection, target, text)
    connection.execute(delete_statement(target, _STAGE))
    connection.execute(sql.SQL("DROP TABLE {}").format(_STAGE))


def _stage(connection: Connection, target: TargetTable, text: _CopyText) -> None:
    query = stage_query(target, stage_columns(target, PieceKind.INSERT))
    connection.execute(sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(_STAGE, query))
    taken = copy_into(connection, _STAGE, text.blocks, new=False)
    if taken != text.rows:
        raise _count_error(target, text, taken)
