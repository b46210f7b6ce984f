"""The SQL of staging and merging. Pure: target tables and stages in, statements out.

A stage is a table that holds the rows of one piece under positional names (``piece.PieceKind``), with the types of the
target's columns, so that no name of a user's column can clash with pgsluice's and every value is checked when it is
staged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from psycopg import sql

from pgsluice.worker.sinks.postgres.fold.piece import PieceKind
from pgsluice.worker.sinks.postgres.merge.row_expressions import (
    equality_operator,
    is_distinct,
    is_same,
    name_of,
    on_key,
    sent_value,
    staged_value,
)
from pgsluice.worker.sinks.postgres.target.catalog import LEFT_OUT
from pgsluice.worker.sinks.postgres.target.table import TargetTable

Statement = sql.Composed

_COMMA = sql.SQL(", ")
_AND = sql.SQL(" AND ")


MOST_STAGE_COLUMNS = 1600
"""A table of PostgreSQL has no more."""


def stage_query(target: TargetTable, columns: Iterable[sql.Composable]) -> Statement:
    """Returns a query for CREATE TABLE … AS: ``columns`` of a stage, without rows."""
    return sql.SQL("SELECT {} FROM {} AS target WITH NO DATA").format(_COMMA.join(columns), target.identifier)


def stage_columns(target: TargetTable, kind: PieceKind) -> list[sql.Composable]:
    """Returns the columns of a stage for pieces of ``kind``, in the sequence of their rows' fields."""
    rows = _typed("c", range(len(target.table.columns)), target)
    keys = _typed("k", target.table.key, target)
    bits = [sql.SQL("NULL::varbit AS unchanged")]
    match kind:
        case PieceKind.INSERT | PieceKind.UPSERT:
            return [*rows]
        case PieceKind.PATCH:
            return [*rows, *bits]
        case PieceKind.MOVE | PieceKind.MOVE_IN_ORDER:
            return [sql.SQL("NULL::bigint AS ord"), *rows, *bits, *keys]
        case PieceKind.DELETE:
            return [*keys]
        case PieceKind.IN_ORDER:
            old = _typed("o", range(len(target.table.columns)), target)
            return [sql.SQL("NULL::bigint AS ord"), sql.SQL('NULL::"char" AS op'), *rows, *old]
        case unreachable:
            assert_never(unreachable)


def _typed(prefix: str, columns: Iterable[int], target: TargetTable) -> list[Statement]:
    return [_value(target, i) + sql.SQL(" AS {}").format(sql.Identifier(f"{prefix}{n}")) for n, i in enumerate(columns, 1)]


def _value(target: TargetTable, column: int) -> Statement:
    if target.columns[column] is LEFT_OUT:
        return sql.SQL("NULL::text").format()
    cast = sql.SQL(f"::{target.domain_types[column]}" if target.domain_types[column] else "")
    return sql.SQL("target.{}{}").format(name_of(target, column), cast)


def merge_statements(target: TargetTable, kind: PieceKind, stage: sql.Composable, *, has_merge: bool) -> list[Statement]:
    """Returns statements that apply the rows of ``stage``, to be run until they have touched as many rows as it has
    (MOVE_IN_ORDER and IN_ORDER: the setting ``pgsluice.missing`` holds how many changes met no row). ``has_merge``: the
    target has MERGE, and no other session is writing rows with these keys."""
    match kind:
        case PieceKind.INSERT:
            return [_insert(target, stage)]
        case PieceKind.UPSERT:
            merges = has_merge and target.written and not target.has_rules
            return [_merge(target, stage)] if merges else upsert_statements(target, stage)
        case PieceKind.PATCH:
            return [_update(target, stage, on_key(target, "c"), set_key=False)]
        case PieceKind.MOVE:
            whole = sql.SQL("(SELECT * FROM {} AS sent WHERE {})").format(stage, _is_whole(target))
            return [
                _update(target, stage, on_key(target, "k"), set_key=True),
                _insert(target, whole, where=_is_missing(target)),
            ]
        case PieceKind.DELETE:
            return [_delete(target, stage, on_key(target, "k"))]
        case PieceKind.MOVE_IN_ORDER:
            return [_move_in_order(target, stage)]
        case PieceKind.IN_ORDER:
            return [_in_order(target, stage)]
        case unreachable:
            assert_never(unreachable)


def upsert_statements(target: TargetTable, stage: sql.Composable, *, only_different: bool = False) -> list[Statement]:
    """Returns merge_statements of UPSERT, if others may write rows with these keys at the same time. INSERT … ON
    CONFLICT alone would make default values for existing rows, and fire its INSERT triggers. ``only_different``:
    unchanged rows are not touched, and not counted. A table with rules accepts no ON CONFLICT: it refuses a row that
    others write at the same time."""
    key = _COMMA.join(name_of(target, i) for i in target.table.key)
    insert = _insert(target, stage, where=_is_missing(target))
    if not target.has_rules:
        insert = sql.SQL("{} ON CONFLICT ({}) DO {}").format(insert, key, _set_excluded(target))
    changed = _set_by_key(target)
    if not changed:
        return [insert]
    condition: sql.Composable = on_key(target, "c")
    if only_different:
        differs = sql.SQL(" OR ").join(is_distinct(target, i, staged_value("c", i)) for i in target.written)
        condition = sql.SQL("{} AND ({})").format(condition, differs)
    update = sql.SQL("UPDATE {} AS target SET {} FROM {} AS staged WHERE {}").format(
        target.rows, _set_staged(target, changed), stage, condition
    )
    return [update, insert]


def _merge(target: TargetTable, stage: sql.Composable) -> Statement:
    changed = _set_by_key(target)
    matched = sql.SQL("UPDATE SET {}").format(_set_staged(target, changed)) if changed else sql.SQL("DO NOTHING")
    new = sql.SQL("({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        _COMMA.join(name_of(target, i) for i in target.written), _COMMA.join(staged_value("c", i) for i in target.written)
    )
    return sql.SQL(
        "MERGE INTO {} AS target USING {} AS staged ON {} WHEN MATCHED THEN {} WHEN NOT MATCHED THEN INSERT {}"
    ).format(target.rows, stage, on_key(target, "c"), matched, new)


def _set_staged(target: TargetTable, columns: Iterable[int]) -> sql.Composed:
    return _COMMA.join(sql.SQL("{} = {}").format(name_of(target, i), staged_value("c", i)) for i in columns)


def _is_missing(target: TargetTable) -> Statement:
    return sql.SQL("NOT EXISTS (SELECT FROM {} AS target WHERE {})").format(target.rows, on_key(target, "c"))


def _is_whole(target: TargetTable) -> Statement:
    """Returns the condition that all values of the staged row were sent."""
    return sql.SQL("unchanged = {}").format(_nothing_unchanged(target))


def _nothing_unchanged(target: TargetTable) -> Statement:
    return sql.SQL("{}::varbit").format(sql.Literal("0" * len(target.table.columns)))


def identity_change_query(target: TargetTable, kind: PieceKind, stage: sql.Composable) -> Statement | None:
    """Finds a row of ``stage`` that would change the value of a column in ``target.fixed``, which no statement can; None when
    there cannot be one."""
    key = target.table.key
    match kind:
        case PieceKind.INSERT | PieceKind.DELETE:
            return None
        case PieceKind.MOVE | PieceKind.MOVE_IN_ORDER:
            pairs = [(staged_value("k", n), staged_value("c", i)) for n, i in enumerate(key) if i in target.fixed]
            source = sql.SQL("{} AS staged").format(stage)
        case PieceKind.IN_ORDER:
            pairs = [(staged_value("o", i), staged_value("c", i)) for i in sorted(target.fixed)]
            source = sql.SQL("(SELECT * FROM {} AS sent WHERE op = 'U') AS staged").format(stage)
        case PieceKind.UPSERT | PieceKind.PATCH:
            pairs = [
                (sql.SQL("target.{}").format(name_of(target, i)), sent_value(target, kind, i))
                for i in target.fixed.difference(key)
            ]
            source = sql.SQL("{} AS staged JOIN {} AS target ON {}").format(stage, target.rows, on_key(target, "c"))
        case unreachable:
            assert_never(unreachable)
    if not pairs:
        return None
    changed = sql.SQL(" OR ").join(sql.SQL("{} IS DISTINCT FROM {}").format(*pair) for pair in pairs)
    return sql.SQL("SELECT FROM {} WHERE {} LIMIT 1").format(source, changed)


def exchange_statements(target: TargetTable, waiting: sql.Composable, *, by_key: bool) -> list[Statement]:
    """Returns statements that make the target hold the rows of ``waiting``, a table with its columns, and no others.
    ``by_key``: equal rows stay; else all are deleted and inserted."""
    delete = sql.SQL("DELETE FROM {}").format(target.rows)
    names = _COMMA.join(name_of(target, i) for i in target.written)
    insert = sql.SQL("INSERT INTO {table} AS target ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {waiting} AS staged")
    inserted = insert.format(table=target.identifier, names=names, waiting=waiting)
    if not by_key:
        return [delete, inserted]
    has_key = _AND.join(
        sql.SQL("staged.{name} {equals} target.{name}").format(name=name_of(target, i), equals=equality_operator(target, i))
        for i in target.table.key
    )
    statements = [sql.SQL("{} AS target WHERE NOT EXISTS (SELECT FROM {} AS staged WHERE {})").format(delete, waiting, has_key)]
    changed = _set_by_key(target)
    if changed:
        sets = _COMMA.join(sql.SQL("{name} = staged.{name}").format(name=name_of(target, i)) for i in changed)
        differs = sql.SQL(" OR ").join(
            is_distinct(target, i, sql.SQL("staged.{}").format(name_of(target, i))) for i in target.written
        )
        statements.append(
            sql.SQL("UPDATE {} AS target SET {} FROM {} AS staged WHERE {} AND ({})").format(
                target.rows, sets, waiting, has_key, differs
            )
        )
    missing = sql.SQL("{} WHERE NOT EXISTS (SELECT FROM {} AS target WHERE {})").format(inserted, target.rows, has_key)
    return [*statements, missing]


def delete_statement(target: TargetTable, stage: sql.Composable) -> Statement:
    """Deletes rows with the keys of ``stage``, whose columns are those of new rows."""
    return _delete(target, stage, on_key(target, "c"))


def unmatched_query(target: TargetTable, kind: PieceKind, stage: sql.Composable, absent: int) -> Statement:
    """Returns the query for the positions of the rows of ``stage``, which has labels, that meet no row; the last
    ``absent`` of them may."""
    missing = sql.SQL("NOT EXISTS (SELECT FROM {} AS target WHERE {})").format(
        target.rows, on_key(target, "c" if kind is PieceKind.PATCH else "k")
    )
    if kind is PieceKind.MOVE:
        missing = sql.SQL("{} AND NOT ({})").format(missing, _is_whole(target))
    return sql.SQL(
        "SELECT staged.position FROM {stage} AS staged WHERE {missing}"
        " AND staged.n <= (SELECT max(s.n) FROM {stage} AS s) - {absent} ORDER BY staged.n"
    ).format(stage=stage, missing=missing, absent=sql.Literal(absent))


def truncate_statement(targets: Iterable[TargetTable], *, restart_identity: bool) -> Statement:
    tables = _COMMA.join(target.rows for target in targets)
    return sql.SQL("TRUNCATE TABLE {}{}").format(tables, sql.SQL(" RESTART IDENTITY" if restart_identity else ""))


def _insert(target: TargetTable, stage: sql.Composable, *, where: sql.Composable | None = None) -> Statement:
    condition = sql.SQL(" WHERE {}").format(where) if where is not None else sql.SQL("")
    if not target.written:
        return sql.SQL("INSERT INTO {} AS target OVERRIDING SYSTEM VALUE SELECT FROM {} AS staged{}").format(
            target.identifier, stage, condition
        )
    return sql.SQL("INSERT INTO {} AS target ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} AS staged{}").format(
        target.identifier,
        _COMMA.join(name_of(target, i) for i in target.written),
        _COMMA.join(staged_value("c", i) for i in target.written),
        stage,
        condition,
    )


def _set_by_key(target: TargetTable) -> list[int]:
    """Returns the columns that a row's new version is written to. A key that is equal without being the same text is
    written too."""
    kept = target.fixed.union(target.table.key) if target.has_exact_key else target.fixed
    return [i for i in target.written if i not in kept]


def _set_excluded(target: TargetTable) -> sql.Composable:
    changed = _set_by_key(target)
    if not changed:
        return sql.SQL("NOTHING")
    return sql.SQL("UPDATE SET ") + _COMMA.join(
        sql.SQL("{} = excluded.{}").format(name_of(target, i), name_of(target, i)) for i in changed
    )


def _delete(target: TargetTable, stage: sql.Composable, condition: Statement) -> Statement:
    return sql.SQL("DELETE FROM {} AS target USING {} AS staged WHERE {}").format(target.rows, stage, condition)


def _update(target: TargetTable, stage: sql.Composable, condition: Statement, *, set_key: bool) -> Statement:
    """Sets what was sent. CASE hands an unchanged value on as it is stored, so a toasted one is not even read. Where the target
    takes nothing but the key from the source, rows are only found."""
    sets = _set_sent(target, set_key=set_key)
    if not sets:
        return sql.SQL("SELECT FROM {} AS target, {} AS staged WHERE {}").format(target.rows, stage, condition)
    return sql.SQL("UPDATE {} AS target SET {} FROM {} AS staged WHERE {}").format(
        target.rows, _COMMA.join(sets), stage, condition
    )


def _set_sent(target: TargetTable, *, set_key: bool) -> list[sql.Composed]:
    return [
        sql.SQL("{} = {}").format(name_of(target, i), sent_value(target, PieceKind.PATCH, i))
        for i in target.written
        if i not in target.fixed and (set_key or i not in target.table.key)
    ]


_MOVE_IN_ORDER = """
DECLARE
    staged record;
    missing bigint := 0;
BEGIN
    FOR staged IN SELECT s.* FROM {stage} AS s ORDER BY s.ord LOOP
        DELETE FROM {rows} AS target WHERE {occupied};
        {update};
        IF NOT FOUND THEN
            IF staged.unchanged = {whole} THEN
                INSERT INTO {table} {row};
            ELSE
                missing := missing + 1;
            END IF;
        END IF;
    END LOOP;
    PERFORM set_config('pgsluice.missing', missing::text, true);
END
"""

_IN_ORDER = """
DECLARE
    staged record;
    old record;
    found_table oid;
    found_row tid;
    missing bigint := 0;
    missing_deletes bigint := 0;
BEGIN
    FOR staged IN SELECT {new} FROM {stage} AS s ORDER BY s.ord LOOP
        IF staged.op = 'I' THEN
            INSERT INTO {table} {row};
            CONTINUE;
        END IF;
        {old};
        SELECT target.tableoid, target.ctid INTO found_table, found_row FROM {rows} AS target WHERE {same} LIMIT 1;
        IF NOT FOUND THEN
            missing := missing + 1;
            missing_deletes := missing_deletes + (staged.op = 'D')::int;
        ELSIF staged.op = 'D' THEN
            DELETE FROM {rows} AS target WHERE target.tableoid = found_table AND target.ctid = found_row;
        ELSE
            {update};
        END IF;
    END LOOP;
    PERFORM set_config('pgsluice.missing', missing::text, true);
    PERFORM set_config('pgsluice.missing_deletes', missing_deletes::text, true);
END
"""


def _move_in_order(target: TargetTable, stage: sql.Composable) -> Statement:
    sets, by_old_key = _set_sent(target, set_key=True), on_key(target, "k")
    found = sql.SQL("UPDATE {} AS target SET {} WHERE {}").format(target.rows, _COMMA.join(sets), by_old_key)
    if not sets:
        found = sql.SQL("PERFORM FROM {} AS target WHERE {}").format(target.rows, by_old_key)
    body = sql.SQL(_MOVE_IN_ORDER).format(
        stage=stage,
        table=target.identifier,
        rows=target.rows,
        occupied=sql.SQL("{} AND NOT ({})").format(on_key(target, "c"), by_old_key),
        update=found,
        whole=_nothing_unchanged(target),
        row=_inserted_row(target),
    )
    return sql.SQL("DO {}").format(sql.Literal(body.as_string()))


def _in_order(target: TargetTable, stage: sql.Composable) -> Statement:
    """Returns the statement. If a row with the one before has more columns than a list of PostgreSQL may have, the
    latter is read separately."""
    columns = range(len(target.table.columns))
    is_wide = 2 * len(columns) + 2 > MOST_STAGE_COLUMNS
    record = sql.SQL("staged")
    new: sql.Composable = sql.SQL("s.*")
    old: sql.Composable = sql.SQL("NULL")
    if is_wide:
        record = sql.SQL("old")
        names = ["ord", "op", *(f"c{i + 1}" for i in columns)]
        new = _COMMA.join(sql.SQL("s.{}").format(sql.Identifier(name)) for name in names)
        listed = _COMMA.join(sql.SQL("s.{}").format(sql.Identifier(f"o{i + 1}")) for i in columns)
        old = sql.SQL("SELECT {} INTO old FROM {} AS s WHERE s.ord = staged.ord").format(listed, stage)
    body = sql.SQL(_IN_ORDER).format(
        stage=stage,
        table=target.identifier,
        rows=target.rows,
        new=new,
        old=old,
        row=_inserted_row(target),
        same=_AND.join(is_same(target, i, record) for i in target.written) if target.written else sql.SQL("true"),
        update=_update_of_found_row(target),
    )
    return sql.SQL("DO {}").format(sql.Literal(body.as_string()))


def _inserted_row(target: TargetTable) -> sql.Composable:
    if not target.written:
        return sql.SQL("DEFAULT VALUES")
    return sql.SQL("({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        _COMMA.join(name_of(target, i) for i in target.written), _COMMA.join(staged_value("c", i) for i in target.written)
    )


def _update_of_found_row(target: TargetTable) -> sql.Composable:
    changed = [i for i in target.written if i not in target.fixed]
    if not changed:
        return sql.SQL("NULL")
    return sql.SQL("UPDATE {} AS target SET {} WHERE target.tableoid = found_table AND target.ctid = found_row").format(
        target.rows, _COMMA.join(sql.SQL("{} = {}").format(name_of(target, i), staged_value("c", i)) for i in changed)
    )
