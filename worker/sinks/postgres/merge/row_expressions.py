"""SQL expressions about a staged row, ``staged`` in a statement, and about the row of the target's that it is for, ``target``."""

from __future__ import annotations

from psycopg import sql

from pgsluice.worker.sinks.postgres.fold.piece import PieceKind
from pgsluice.worker.sinks.postgres.target.table import TargetTable


def name_of(target: TargetTable, column: int) -> sql.Identifier:
    return sql.Identifier(target.columns[column].name)


def staged_value(prefix: str, column: int) -> sql.Composed:
    return sql.SQL("staged.{}").format(sql.Identifier(f"{prefix}{column + 1}"))


def on_key(target: TargetTable, prefix: str) -> sql.Composed:
    """Returns the condition that the target's row is the one whose key the staged row has in its ``c`` or in its ``k``
    columns."""
    return same_key(target, prefix, sql.SQL("target"))


def same_key(target: TargetTable, prefix: str, row: sql.SQL) -> sql.Composed:
    """Returns the condition that ``row``, a name of the target's table in the statement, is the row whose key the
    staged one has in its ``c`` or ``k`` columns."""
    return sql.SQL(" AND ").join(
        sql.SQL("{}.{} {} {}").format(row, name_of(target, i), equality_operator(target, i), value)
        for i, value in zip(target.table.key, staged_key(target, prefix), strict=True)
    )


def key_texts(target: TargetTable, prefix: str) -> sql.Composed:
    """Returns the staged row's key as an array of texts."""
    values = sql.SQL(", ").join(sql.SQL("{}::text").format(value) for value in staged_key(target, prefix))
    return sql.SQL("ARRAY[{}]").format(values)


def staged_key(target: TargetTable, prefix: str) -> list[sql.Composed]:
    return [staged_value("c", i) if prefix == "c" else staged_value("k", n) for n, i in enumerate(target.table.key)]


def equality_operator(target: TargetTable, column: int) -> sql.SQL:
    """Types of extensions have an ``=`` that only their schema in the search path would find."""
    operator = target.equality[column]
    return sql.SQL(f"OPERATOR({operator})" if operator else "=")


def sent_value(target: TargetTable, kind: PieceKind, column: int) -> sql.Composed:
    """Returns the value that the row is to have: what was sent, else what it has."""
    if kind is PieceKind.UPSERT:
        return staged_value("c", column)
    return sql.SQL("CASE get_bit(staged.unchanged, {}) WHEN 0 THEN {} ELSE target.{} END").format(
        sql.SQL(str(column)), staged_value("c", column), name_of(target, column)
    )


def is_distinct(target: TargetTable, column: int, value: sql.Composable) -> sql.Composed:
    """Compares by text if ``=`` may be true for other text, or does not exist."""
    form = "target.{name} IS DISTINCT FROM {value}"
    if column not in target.exact:
        form = 'target.{name}::text COLLATE "C" IS DISTINCT FROM {value}::text COLLATE "C"'
    return sql.SQL(form).format(name=name_of(target, column), value=value)


def is_same(target: TargetTable, column: int, record: sql.Composable) -> sql.Composed:
    """Returns SQL: the target's value is the old one in ``record``, by its text, unless ``=`` is equivalent (then an
    index can help)."""
    name, old = name_of(target, column), sql.SQL("{}.{}").format(record, sql.Identifier(f"o{column + 1}"))
    if column not in target.exact:
        return sql.SQL('target.{}::text COLLATE "C" IS NOT DISTINCT FROM {}::text COLLATE "C"').format(name, old)
    if column in target.not_null:
        return sql.SQL("target.{} = {}").format(name, old)
    return sql.SQL("(target.{name} = {old} OR (target.{name} IS NULL AND {old} IS NULL))").format(name=name, old=old)
