"""The SQL of a pipeline: the rows that a run reads, the borders of ranges, and the COPY of each range. Pure.

Rows are compared by their whole cursor, ``(updated_at, id) > (…)``, which an index on these columns serves, and which
neither repeats nor skips rows that share a time. Values are literals of the columns' types: COPY takes no parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.replicator.pipelines.key_operators import KeyComparison, KeyOperators
from pgsluice.replicator.pipelines.pipeline import Pipeline, WriteMode
from pgsluice.shared.pipelines.run_records import Key, RangeRecord
from pgsluice.shared.wire.table import Column, Table


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """Rows with a key above ``after`` (() for all), or with an incremental key of ``reread_from`` or later where that is not "";
    ``before`` is an incremental key that is too late, "" for none."""

    after: Key = ()
    reread_from: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class QuerySql:
    """``table`` has the query's columns, ``operators`` are those of the columns of key and cursor."""

    pipeline: Pipeline
    table: Table
    operators: KeyOperators

    def nulls(self) -> str:
        """Returns the condition that a row lacks a value of the ordering columns."""
        missing = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self.pipeline.cursor)
        return sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(self.rows, missing).as_string(None)

    def borders(self, wanted: RowsWanted) -> str:
        """Returns SQL for the keys that ranges may end with, in order, each with the number of rows up to there,
        whether its row has the key of the one before it, and whether it lacks a value of its key; such rows are always
        included. Keys are compared from the end, which decides most comparisons; one that lacks a value equals no
        other."""
        names = [sql.Identifier(f"c{number}") for number in range(len(self.pipeline.cursor))]
        columns = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(sql.Identifier(name), alias)
            for name, alias in zip(self.pipeline.cursor, names, strict=True)
        )
        before = [sql.SQL("lag({}) OVER w").format(name) for name in names]
        same = sql.SQL(" AND ").join(
            self.operators.compared(column, name, KeyComparison.EQUAL, value)
            for column, name, value in reversed(list(zip(self.pipeline.cursor, names, before, strict=True)))
        )
        plain = sql.SQL(", ").join(names)
        missing = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(name) for name in names)
        return (
            sql.SQL(
                "SELECT {texts}, n, is_double, {missing} FROM ("
                "SELECT {plain}, row_number() OVER w AS n, lead(1) OVER w IS NULL AS is_last,"
                " ({same}) IS TRUE AS is_double"
                " FROM (SELECT {columns} FROM {rows} WHERE {wanted}) AS keys WINDOW w AS (ORDER BY {plain})) AS numbered"
                " WHERE n % {step} = 0 OR is_last OR is_double OR {missing} ORDER BY n"
            )
            .format(
                texts=sql.SQL(", ").join(sql.SQL("{}::text").format(name) for name in names),
                plain=plain,
                same=same,
                columns=columns,
                rows=self.rows,
                missing=missing,
                wanted=self._wanted(wanted),
                step=sql.Literal(self.pipeline.border_rows),
            )
            .as_string(None)
        )

    def repeated(self, wanted: RowsWanted) -> str:
        """Returns the query that finds whether two of the wanted rows have the same key at the target."""
        key = sql.SQL(", ").join(map(sql.Identifier, self.pipeline.key))
        query = "SELECT EXISTS (SELECT FROM {} WHERE {} GROUP BY {} HAVING count(*) > 1)"
        return sql.SQL(query).format(self.rows, self._wanted(wanted), key).as_string(None)

    @property
    def may_repeat(self) -> bool:
        """Returns whether rows with different cursors may have one key, and meet at the target."""
        pipeline = self.pipeline
        return pipeline.write is not WriteMode.APPEND and not set(pipeline.cursor).issubset(pipeline.key)

    def parts(self, wanted: RowsWanted, each: RangeRecord, most: int) -> str:
        """Returns the query for the keys that up to ``most`` parts of a range end with, in order, each with the number
        of rows up to there. Of the query's columns it names those of the key alone, so the server works out no others,
        where it can."""
        names = sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in range(len(self.pipeline.cursor)))
        return (
            sql.SQL(
                "SELECT {texts}, n FROM (SELECT {names}, row_number() OVER (ORDER BY {names}) AS n, count(*) OVER () AS rows"
                " FROM (SELECT {cursor} FROM {rows} WHERE {conditions}) AS keys ({names})) AS numbered"
                " WHERE n % ((rows + {most} - 1) / {most}) = 0 OR n = rows ORDER BY n"
            )
            .format(
                texts=sql.SQL(", ").join(
                    sql.SQL("{}::text").format(sql.Identifier(f"c{number}")) for number in range(len(self.pipeline.cursor))
                ),
                names=names,
                cursor=self._cursor,
                rows=self.rows,
                conditions=self._in_range(wanted, each),
                most=sql.Literal(most),
            )
            .as_string(None)
        )

    def counts(self, wanted: RowsWanted, ranges: Sequence[RangeRecord]) -> str:
        """Returns the query for the number of each range, none of a single row, and its rows. It finds these by sorting rows and
        borders together, and so checks ``copy``, which compares each row with the borders."""
        names = sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in range(len(self.pipeline.cursor)))
        borders = [(each.number, sign, key) for each in ranges for sign, key in ((1, each.last), (-1, each.after)) if key]
        values = [
            sql.SQL("({}, {}, {})").format(number, sign, sql.SQL(", ").join(self._literals(key))) for number, sign, key in borders
        ]
        return (
            sql.SQL(
                "SELECT number, sum(sign * rows)::bigint FROM (SELECT number, sign,"
                " count(*) FILTER (WHERE number IS NULL) OVER (ORDER BY {names}) AS rows"
                " FROM (SELECT NULL::int, NULL::int, {cursor} FROM {rows} WHERE {wanted} UNION ALL VALUES {values})"
                " AS keys (number, sign, {names})) AS borders WHERE number IS NOT NULL GROUP BY number"
            )
            .format(
                names=names,
                cursor=self._cursor,
                rows=self.rows,
                wanted=self._wanted(wanted),
                values=sql.SQL(", ").join(values),
            )
            .as_string(None)
        )

    def copy(self, wanted: RowsWanted, each: RangeRecord) -> str:
        """Returns the query for the rows of a range, in order: the same whenever they are read under one snapshot."""
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.table.columns)
        return (
            sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {}) TO STDOUT")
            .format(columns, self.rows, self._in_range(wanted, each), self._cursor)
            .as_string(None)
        )

    def _in_range(self, wanted: RowsWanted, each: RangeRecord) -> sql.Composable:
        if each.is_row:
            conditions = [self._compared(KeyComparison.EQUAL, each.last)]
            if each.is_replayed:
                conditions.append(sql.SQL("NOT ({})").format(self._wanted(wanted)))
        else:
            conditions = [self._wanted(wanted), self._compared(KeyComparison.LESS_OR_EQUAL, each.last)]
        if each.after:
            conditions.append(self._compared(KeyComparison.GREATER, each.after))
        return sql.SQL(" AND ").join(conditions)

    def is_after(self, key: Key, other: Key) -> str:
        """Returns the condition that ``key`` is greater than ``other``."""
        cursor = self.pipeline.cursor
        compared = self.operators.rows_compared(cursor, self._literals(key), KeyComparison.GREATER, self._literals(other))
        return sql.SQL("SELECT {}").format(compared).as_string(None)

    def is_at_or_before(self, value: str, other: str) -> str:
        """Returns the condition that one incremental key is less than or equal to another."""
        first = self._cursor_columns[0]
        values = _literal(first, value), _literal(first, other)
        compared = self.operators.compared(first.name, values[0], KeyComparison.LESS_OR_EQUAL, values[1])
        return sql.SQL("SELECT {}").format(compared).as_string(None)

    def earlier(self, value: str, overlap: str, kind: str) -> str:
        """Returns the text of an incremental key that lies ``overlap``, of the type ``kind``, before ``value``."""
        first = self._cursor_columns[0]
        return (
            sql.SQL("SELECT (({} OPERATOR(pg_catalog.-) {}::{})::{})::text")
            .format(_literal(first, value), sql.Literal(overlap), sql.SQL(kind), sql.SQL(first.type_name))
            .as_string(None)
        )

    @property
    def rows(self) -> sql.Composable:
        """SQL for the FROM item. The line end closes a comment that the query may end with."""
        return sql.SQL("({}\n) AS q").format(sql.SQL(self.pipeline.query))

    @property
    def _cursor(self) -> sql.Composable:
        return sql.SQL(", ").join(map(sql.Identifier, self.pipeline.cursor))

    @property
    def _cursor_columns(self) -> Sequence[Column]:
        by_name = {column.name: column for column in self.table.columns}
        return [by_name[name] for name in self.pipeline.cursor]

    def _wanted(self, wanted: RowsWanted) -> sql.Composable:
        conditions: list[sql.Composable] = [sql.SQL("true")]
        first = self._cursor_columns[0]
        if wanted.reread_from:
            conditions.append(self._incremental(KeyComparison.GREATER_OR_EQUAL, _literal(first, wanted.reread_from)))
        elif wanted.after:
            conditions.append(self._compared(KeyComparison.GREATER, wanted.after))
        if wanted.before:
            conditions.append(self._incremental(KeyComparison.LESS, _literal(first, wanted.before)))
        if self.pipeline.skips_nulls:
            conditions += [sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in self.pipeline.cursor]
        return sql.SQL(" AND ").join(conditions)

    def _incremental(self, comparison: KeyComparison, value: sql.Composable) -> sql.Composable:
        name = self.pipeline.cursor[0]
        return self.operators.compared(name, sql.Identifier(name), comparison, value)

    def _compared(self, comparison: KeyComparison, key: Key) -> sql.Composable:
        cursor = self.pipeline.cursor
        return self.operators.rows_compared(cursor, [*map(sql.Identifier, cursor)], comparison, self._literals(key))

    def _literals(self, key: Key) -> list[sql.Composable]:
        return [_literal(column, text) for column, text in zip(self._cursor_columns, key, strict=True)]


def _literal(column: Column, text: str) -> sql.Composable:
    """The server itself wrote the type's name."""
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(column.type_name))
