"""Checks that keys which differ at the source differ at the target, too, because a merge finds rows by their keys.

A numeric(9,1) makes 1.01 and 1.02 the same key, so a change of one row would take the place of the other. A type that refuses
what does not fit it does no harm: such rows become dead letters.
"""

from __future__ import annotations

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Column
from pgsluice.worker.sinks.postgres.target.catalog import LEFT_OUT, CatalogEntry, TargetColumn
from pgsluice.worker.sinks.postgres.target.table import TargetTable
from pgsluice.worker.sinks.postgres.target.type_names import TypeName

_VARCHAR = "character varying"
_BLANK_PADDED = ("character", "bpchar")
_KEEPING_BLANKS = ("text", _VARCHAR, "name", '"char"')
"""Types of text whose values may differ in blanks at their ends alone."""
_STRINGS = (*_KEEPING_BLANKS, *_BLANK_PADDED)

_INTEGERS = ("smallint", "integer", "bigint")
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19, "oid": 10, "xid8": 20}
"""Whole numbers, with the decimal digits that they may have."""
_FLOAT_DIGITS = {"real": 6, "double precision": 15}
"""Decimal digits that survive in each."""

_TIMES = {
    "timestamp": ("timestamp without time zone", "timestamp with time zone"),
    "time": ("time without time zone", "time with time zone"),
}
_MICROSECONDS = 6
_ALIKE = (("bit", '"bit"', "bit varying"), ("inet", "cidr"), ("macaddr", "macaddr8"), ("json", "jsonb"))
"""Types that refuse what they cannot hold of each other."""


def check_key_types(target: TargetTable, entry: CatalogEntry) -> None:
    """Raises TerminalError for a key that the target considers equal to another one of the source."""
    key = [(target.table.columns[i], target.columns[i]) for i in target.table.key if target.columns[i] is not LEFT_OUT]
    for column, there in key:
        is_enum = "." in there.type_name and there.exact
        if not is_enum and not tells_apart(column.type_name, there.type_name):
            raise _narrow(target, column, there)
        if there.collation not in ("", column.collation):
            raise _folding(target, column, there)
    names, collations = {there.name for _, there in key}, {there.name: column.collation for column, there in key}
    for index in entry.folding_indexes:
        if set(index.columns) == names and index.collation != collations[index.column]:
            raise _folding_index(target, index.name, index.column)


def tells_apart(source: str, target: str) -> bool:
    """Returns whether values of the type ``source`` that differ also differ as values of ``target``, or are refused.
    Both are names as ``format_type`` writes them. True as well for a type that is not built in, of which nothing is
    known, and for a varchar that cuts off blanks beyond its length.
    """
    was, now = TypeName.parse(source), TypeName.parse(target)
    if source == target or was is None or now is None or "." in was.base:
        return True
    if now.base in ("text", _VARCHAR) and not now.is_array:
        return True
    if was.is_array is not now.is_array:
        return False
    return _text_stays(was, now) or _number_stays(was, now) or _time_stays(was, now) or _is_alike(was, now)


def _text_stays(was: TypeName, now: TypeName) -> bool:
    if now.base in ("text", _VARCHAR):
        return True
    return now.base in _BLANK_PADDED and was.base not in _KEEPING_BLANKS


def _number_stays(was: TypeName, now: TypeName) -> bool:
    is_whole = was.base in _DIGITS
    if not (is_whole or was.base == "numeric" or was.base in _FLOAT_DIGITS):
        return False
    if now.base in _INTEGERS:
        return True
    if now.base == "numeric":
        return not now.modifiers or (is_whole and now.modifiers[1] >= 0) or _scale(was) <= now.modifiers[1]
    if was.base in _FLOAT_DIGITS:
        return _FLOAT_DIGITS.get(now.base, 0) >= _FLOAT_DIGITS[was.base]
    digits = _DIGITS.get(was.base) or (was.modifiers[0] if was.modifiers else None)
    return digits is not None and digits <= _FLOAT_DIGITS.get(now.base, 0)


def _scale(numeric: TypeName) -> float:
    return numeric.modifiers[1] if numeric.base == "numeric" and numeric.modifiers else float("inf")


def _time_stays(was: TypeName, now: TypeName) -> bool:
    if was.base == now.base == "interval":
        return not now.fields and _precision(was) <= _precision(now)
    if was.base == "date":
        return now.base in _TIMES["timestamp"]
    is_zone_kept = was.base == now.base or not was.base.startswith("time ") or now.base.endswith("with time zone")
    is_same = any(was.base in kinds and now.base in kinds for kinds in _TIMES.values())
    return is_same and is_zone_kept and _precision(was) <= _precision(now)


def _precision(time: TypeName) -> int:
    return time.modifiers[0] if time.modifiers else _MICROSECONDS


def _is_alike(was: TypeName, now: TypeName) -> bool:
    is_plain = was.base == now.base and was.base not in (*_STRINGS, "numeric", "interval", *_TIMES["timestamp"], *_TIMES["time"])
    return is_plain or any(was.base in kinds and now.base in kinds for kinds in _ALIKE)


def _narrow(target: TargetTable, column: Column, there: TargetColumn) -> TerminalError:
    alter = _alter(target, there) + sql.SQL(" TYPE ") + sql.SQL(column.type_name)
    return TerminalError(
        f"column '{there.name}' of the key of table '{target.table.qualified_name}' at the target is {there.type_name}, the"
        f" source's is {column.type_name}: keys that differ there are the same here, and one row would take the other's place",
        f"run at the target: {alter.as_string()}; then start again, nothing is lost",
        statements=[alter.as_string()],
    )


def _folding(target: TargetTable, column: Column, there: TargetColumn) -> TerminalError:
    fact = (
        f"column '{there.name}' of the key of table '{target.table.qualified_name}' at the target has a nondeterministic"
        f" collation ({there.collation}), which the source's has not: keys that differ there are the same here, and one row would"
        " take the other's place"
    )
    if column.collation:
        return TerminalError(fact, f"give it the source's collation ({column.collation}), or a deterministic one")
    alter = (
        _alter(target, there) + sql.SQL(" TYPE ") + sql.SQL(there.domain_type or there.type_name) + sql.SQL(' COLLATE "default"')
    )
    return TerminalError(
        fact, f"run at the target: {alter.as_string()}; then start again, nothing is lost", statements=[alter.as_string()]
    )


def _folding_index(target: TargetTable, index: str, column: str) -> TerminalError:
    return TerminalError(
        f"unique index {index} of table '{target.table.qualified_name}' at the target is on the key, and has another,"
        f" nondeterministic collation for column '{column}': keys that differ at the source are the same here, and one row would"
        " take the other's place",
        f"drop it there, or make it an index that is not unique: DROP INDEX {index}",
    )


def _alter(target: TargetTable, there: TargetColumn) -> sql.Composed:
    return sql.SQL("ALTER TABLE {} ALTER COLUMN {}").format(target.identifier, sql.Identifier(there.name))
