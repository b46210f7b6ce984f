"""Translates an error of the target for the worker, without any row value.

    SQLSTATE                                                policy
    none, 08…, 57…                 connection or server gone        TransientError
    40…, 55P03, 55006              deadlock, serialization, lock    TransientError
    53200, "max_locks_…"           table of locks is full           TransientError, after some attempts TerminalError
    53…, 58…, 25006                out of something, read-only      TransientError
    42501                          permission                       MissingPrivilegeError: grant it
    22…, 23…, 44…, 54000, P0001    values of single rows            dead letters, when it is known which (``refused_rows``)
    everything else                the data or the schema           TerminalError: change the target, or a function there

A server's message, DETAIL and CONTEXT can contain values; only names and the SQLSTATE are used.
"""

from __future__ import annotations

import re

import psycopg

from pgsluice.shared.errors import Cause, MissingPrivilegeError, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.postgres.passing_cause import passing_cause
from pgsluice.shared.wire.table import Table

MEETS_ANOTHER = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)
"""Errors for a row whose key another row of the target has: a key WITHOUT OVERLAPS is an exclusion constraint."""

_TRANSIENT_CLASSES = ("08", "40", "53", "57", "58")
_TRANSIENT_STATES = {"55P03", "55006", "25006", "25P03", "25P04"}
_NAME_CLASSES = ("42", "3F")
"""Classes for a name that does not exist, or may not be resolved."""
_ROW_CLASSES = ("22", "23", "44")
_ROW_STATES = {"54000", "P0001"}
"""An index entry that is too large; what a trigger raises."""
_COLUMN = re.compile(r"^COPY [^,]*, \w+ \d+, \w+ ")  # in whatever language the server speaks
_NAME = r'(?:"[^"]+"|[\w$]+)'
_FUNCTION = re.compile(
    rf'(?:\w+ )?PL/\w+\S*\s+(?:function )?({_NAME}(?:\.{_NAME})?)(?:\(|\s|$)|SQL function ("[^"]+") (?:statement|during)'
)
"""A line of an error's context, whatever language the server speaks: "PL/pgSQL function audit() line 3 at SQL statement"."""
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class PieceError(Exception):
    """The target refused a statement for ``table``; ``cause`` is the server's error. ``has_rows``: the statement applies rows,
    each of which could be tried alone. Never leaves the sink."""

    def __init__(self, table: Table, cause: psycopg.Error, *, has_rows: bool = True) -> None:
        super().__init__(table.qualified_name)
        self.table = table
        self.cause = cause
        self._has_rows = has_rows

    @property
    def concerns_rows(self) -> bool:
        """Returns whether other rows of the statement could be applied."""
        return self._has_rows and concerns_rows(self.cause)


class DirectCopyError(Exception):
    """Rows could not be copied straight into a table: one met a row of its key. Never leaves the sink."""


def is_lock_table_full(error: psycopg.Error) -> bool:
    """Returns whether the target has no place for another lock: "out of shared memory", with the setting's name in the
    hint.
    """
    return error.sqlstate == "53200" and "max_locks_per_transaction" in (error.diag.message_hint or "")


def is_transient(error: psycopg.Error) -> bool:
    """Returns whether the same statement may succeed later."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES


def concerns_rows(error: psycopg.Error) -> bool:
    """Returns whether the values of single rows may be the cause, so that other rows of the same statement could be
    applied.
    """
    state = error.sqlstate or ""
    return state[:2] in _ROW_CLASSES or state in _ROW_STATES


def reason(error: psycopg.Error, table: Table) -> str:
    """Returns why a row of ``table`` was refused."""
    return f"the target refused it: {_condition(error)}{_place(error, table)}"


_CHANGE_THE_TABLE = (
    "nothing of the batch was applied; change the target table so that it accepts the rows of the source table, and start again"
)
_COPY_AGAIN = "change the target table so that it accepts the rows of the source table, and start again; loaded rows stay"
_LOCKS = (
    "raise max_locks_per_transaction at the target and restart that server: a source transaction over many tables takes locks on"
    " all of them and their indexes; or end sessions there that hold many locks"
)
_FUNCTION_NAMES = (
    "a trigger, default or constraint of the target's table calls that function, and search_path is pg_catalog alone then, as"
    " under PostgreSQL's own replication: write the schema of each name in it, or ALTER FUNCTION … SET search_path = …; then"
    " start again, nothing of the batch was applied"
)
_FUNCTION_RIGHTS = (
    "a trigger, default or constraint of the target's table calls that function: grant the target user the privilege, or ALTER"
    " FUNCTION … SECURITY DEFINER"
)
_NO_ORDER = (
    "rows are copied in no particular order: set target-disable-foreign-keys: true, or drop the constraint until the copy is"
    " done; then start again"
)
_SAME_KEY = (
    "several rows of a batch have the same key at the target: let the pipeline's query and steps return each key once, and let"
    " the target's key distinguish the same values as the query's (its types, their collations); then 'pgsluice drop"
    " --nats-only' removes the waiting messages, and the next run reads all rows"
)


def target_error(
    error: psycopg.Error, table: Table | None, doing: str, remedy: str = _CHANGE_THE_TABLE, *, is_last: bool = False
) -> PgsluiceError:
    """Returns the error to raise instead of ``error``. ``doing`` completes "the target failed while …"; ``remedy`` is
    for an error of the data or the schema. ``is_last``: the last attempt with too few locks."""
    name = _condition(error)
    if is_lock_table_full(error):
        fact = f"the target failed while {doing}: its table of locks is full ({name})"
        if is_last:
            return TerminalError(fact, f"{_LOCKS}; then start the worker again, nothing is lost")
        remedy = f"the batch is applied again with fewer staging tables; if that does not help, {_LOCKS}"
        return TransientError(fact, remedy, Cause.LOCK)
    if is_transient(error):
        cause = passing_cause(error.sqlstate, Cause.TARGET)
        return TransientError(f"the target failed while {doing} ({name})", "the batch is applied again", cause)
    where = f" into table '{table.qualified_name}'" if table is not None else ""
    function = function_in(error.diag.context or "")
    if error.sqlstate == "42501":
        return MissingPrivilegeError(
            f"the target does not permit {doing}{where} ({name}{_place(error, table)})",
            _FUNCTION_RIGHTS
            if function
            else "grant the target user CREATE on the schemas and INSERT, UPDATE, DELETE, TRUNCATE and SELECT on the tables"
            " (with target-sync-sequences: SELECT and UPDATE on their sequences)",
        )
    if function and (error.sqlstate or "").startswith(_NAME_CLASSES):
        remedy = _FUNCTION_NAMES
    return TerminalError(f"the target refused {doing}{where}: {name}{_place(error, table)}", remedy)


def copy_error(error: PieceError, doing: str, *, is_last: bool) -> PgsluiceError:
    """Returns the error for copied rows; some may be loaded."""
    remedy = _COPY_AGAIN
    if isinstance(error.cause, psycopg.errors.ForeignKeyViolation):
        remedy = _NO_ORDER
    elif isinstance(error.cause, psycopg.errors.CardinalityViolation):
        remedy = _SAME_KEY
    return target_error(error.cause, error.table, doing, remedy, is_last=is_last)


def _condition(error: psycopg.Error) -> str:
    """Returns the condition's name as in the manual's appendix "PostgreSQL Error Codes", and its code."""
    words = _WORDS.sub(" ", type(error).__name__).lower()
    return f"{words}, SQLSTATE {error.sqlstate}" if error.sqlstate else words


def _place(error: psycopg.Error, table: Table | None) -> str:
    """Returns the column and constraint that the server names."""
    diagnostic = error.diag
    names = []
    if diagnostic.table_name and (table is None or diagnostic.table_name != table.name):
        names.append(f"table '{diagnostic.schema_name}.{diagnostic.table_name}'")
    column = _source_column(diagnostic.column_name or "", table) or diagnostic.column_name or _copied_column(error, table)
    if column:
        names.append(f"column '{column}'")
    if diagnostic.constraint_name:
        names.append(f"constraint '{diagnostic.constraint_name}'")
    if diagnostic.datatype_name:
        names.append(f"type '{diagnostic.datatype_name}'")
    if function := function_in(diagnostic.context or ""):
        names.append(f"function {function}")
    return "".join(f", {name}" for name in names)


def function_in(context: str) -> str:
    """Returns the outermost function in which an error of this context was raised; "" when it was raised in none. Lines
    before the server's last ones may quote a statement with its values, so the last that fits is taken."""
    for line in reversed(context.splitlines()):
        if found := _FUNCTION.match(line):
            return found.group(1) or found.group(2)
    return ""


def _copied_column(error: psycopg.Error, table: Table | None) -> str:
    """Returns the column that COPY was reading, from the error's context: ``COPY t, line 3, column c2: …``. The name is
    a stage's, or of a table that rows are copied into directly."""
    name = _COLUMN.sub("", (error.diag.context or "").split(":", 1)[0])
    own = {column.name for column in table.columns} if table else set()
    return _source_column(name, table) or (name if name in own else "")


def _source_column(staged: str, table: Table | None) -> str:
    """Returns the table's name for a staging column; "" for another column."""
    found = re.fullmatch(r"([cko])(\d+)", staged)
    if found is None or table is None:
        return ""
    index = int(found.group(2)) - 1
    if found.group(1) == "k":
        index = table.key[index] if index < len(table.key) else -1
    return table.columns[index].name if 0 <= index < len(table.columns) else ""
