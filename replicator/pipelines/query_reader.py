"""The server's answers about a pipeline's query, under the snapshot of a run: its columns, its gaps, and its borders.

The server prepares every statement before it runs it, which accepts a single statement, in a read-only transaction. So
a query that contains a second one, or that writes, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg import errors

from pgsluice.replicator.pipelines.key_operators import OPERATORS, KeyOperators
from pgsluice.replicator.pipelines.key_ranges import QuerySql, RowsWanted
from pgsluice.replicator.pipelines.pipeline import Pipeline, WriteMode
from pgsluice.replicator.snapshot.export import CHECK_INTERVAL_S
from pgsluice.replicator.source.connection import Connection, server_said, sql_error
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.pipelines.run_records import Key, RangeRecord
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

_SESSION: LiteralString = "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS given (name, value)"

# Before the query's search path is set: types of other schemas are named with these.
_TYPE_NAMES: LiteralString = """
    SELECT format_type(type_oid, typmod)
      FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS w (type_oid, typmod, ordinality)
     ORDER BY ordinality
"""


_WORK_MEM_KB: LiteralString = "SELECT pg_size_bytes(current_setting('work_mem')) / 1024"


async def server_work_mem_kb(connection: Connection) -> int:
    """Returns the server's work_mem for this role. Raises PgsluiceError."""
    try:
        row = await (await connection.execute(_WORK_MEM_KB)).fetchone()
    except psycopg.Error as error:
        raise sql_error(error, "asking for work_mem") from None
    assert row is not None
    return int(row[0])


@dataclass(frozen=True, slots=True)
class Border:
    """A key, and how many of the rows that are wanted come up to it."""

    key: Key
    rows: int


class QueryReader:
    """``connection`` is in a transaction under the snapshot. Call ``query`` first."""

    def __init__(self, connection: Connection, pipeline: Pipeline) -> None:
        self._connection = connection
        self._pipeline = pipeline

    async def hold(self) -> None:
        """Locks the query's tables until the end of the transaction against rewriting, as TRUNCATE and some forms of
        ALTER TABLE do. To an earlier snapshot, such a table is empty. Raises as ``query``."""
        await self._no_rows()

    async def query(self) -> QuerySql:
        """Returns the statements for the query's rows, with the target's table. Raises UsageError for a query that cannot be
        read, or lacks columns that the pipeline names."""
        table = await self._described()
        names = list(dict.fromkeys((*self._pipeline.key, *self._pipeline.cursor)))
        types = {column.name: column.type_oid for column in table.columns}
        found = await self._rows(OPERATORS, [[types[name] for name in names]])
        return QuerySql(self._pipeline, table, KeyOperators.of(names, found))

    async def _described(self) -> Table:
        """Returns the target's table with the query's columns."""
        pipeline, result = self._pipeline, (await self._no_rows()).pgresult
        assert result is not None
        names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
        self._check_names(names)
        oids = [result.ftype(i) for i in range(result.nfields)]
        modifiers = [result.fmod(i) for i in range(result.nfields)]
        path = await self._rows("SELECT set_config('search_path', 'pg_catalog', true)")
        assert path
        type_names = [name for (name,) in await self._rows(_TYPE_NAMES, [oids, modifiers])]
        await self._rows(_SESSION, [["search_path"], [pipeline.search_path]])
        return self._table(names, oids, type_names, modifiers)

    async def _no_rows(self) -> psycopg.AsyncCursor[Any]:
        """The server locks all that the query reads."""
        await self._rows(_SESSION, [list(part) for part in zip(*self._pipeline.session, strict=True)])
        return await self._execute(f"SELECT * FROM ({self._pipeline.query}\n) AS q LIMIT 0")

    def _table(self, names: list[str], oids: list[int], type_names: list[str], modifiers: list[int]) -> Table:
        key = () if self._pipeline.write is WriteMode.APPEND else self._pipeline.key
        columns = tuple(
            Column(
                name=name,
                type_oid=oid,
                type_name=type_name,
                typmod=modifier,
                not_null=name in key,
                primary_key_position=key.index(name) + 1 if name in key else None,
                identity_key=name in key,
                identity="",
                generated="",
                number=number,
            )
            for number, (name, oid, type_name, modifier) in enumerate(zip(names, oids, type_names, modifiers, strict=True), 1)
        )
        identity = ReplicaIdentity.DEFAULT if key else ReplicaIdentity.NOTHING
        return Table(self._pipeline.oid, self._pipeline.schema, self._pipeline.table, identity, columns)

    def _check_names(self, names: list[str]) -> None:
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled or "?column?" in names:
            which = ", ".join(doubled or ["?column?"])
            raise UsageError(f"{self._called} has no distinct name for each column ({which})", "name them with AS")
        wanted = (*self._pipeline.key, *self._pipeline.cursor, *self._pipeline.deleted_by)
        missing = [name for name in dict.fromkeys(wanted) if name not in names]
        if missing:
            raise UsageError(
                f"{self._called} has no column {', '.join(missing)}", f"its columns are {', '.join(names)} (case matters)"
            )

    async def watch(self) -> None:
        """Ends only by raising PgsluiceError: the connection is gone, and nothing is held."""
        while True:
            await self._rows("SELECT 1")
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def check_nulls(self, query: QuerySql) -> None:
        """Raises TerminalError when rows have no place in the order."""
        [(found,)] = await self._rows(query.nulls())
        if found:
            raise self._nulls_error()

    async def check_repeated(self, query: QuerySql, wanted: RowsWanted) -> None:
        """Raises TerminalError when several of the rows that are wanted have one key. May be called without ``query``."""
        await self.hold()
        if await self.value(query.repeated(wanted)):
            raise self._doubles_error(self._pipeline.key)

    async def borders(self, query: QuerySql, wanted: RowsWanted) -> list[Border]:
        """Returns where ranges may end, in order; [] when no row is wanted. Raises TerminalError when two rows have one
        key, or a wanted row lacks a value of it."""
        found = []
        async with aclosing(self.stream(query.borders(wanted))) as streaming:
            async for *texts, rows, is_double, is_missing in streaming:
                if is_missing:
                    raise self._nulls_error()
                if is_double:
                    raise self._doubles_error(self._pipeline.cursor)
                found.append(Border(tuple(texts), rows))
        return found

    async def parts(self, query: QuerySql, wanted: RowsWanted, each: RangeRecord, most: int) -> list[Border]:
        """Returns where up to ``most`` parts of a range end, in order; [] for a range without rows."""
        return [Border(tuple(texts), rows) for *texts, rows in await self._rows(query.parts(wanted, each, most))]

    async def counted(self, query: QuerySql, wanted: RowsWanted, ranges: Sequence[RangeRecord]) -> list[RangeRecord]:
        """Returns ``ranges`` with their counts of rows under this snapshot; ranges of a single row stay as they are."""
        counted = [each for each in ranges if not each.is_row]
        found = dict(await self._rows(query.counts(wanted, counted))) if counted else {}
        return [each if each.is_row else replace(each, rows=found[each.number]) for each in ranges]

    def _nulls_error(self) -> TerminalError:
        return TerminalError(
            f"{self._called} gives rows without a value in {', '.join(self._pipeline.cursor)}",
            "leave them out in the query, or write nulls: skip",
        )

    def _doubles_error(self, columns: Sequence[str]) -> TerminalError:
        return TerminalError(
            f"{self._called} gives several rows with the same {', '.join(columns)}",
            "name columns in key that identify its rows",
        )

    async def value(self, query: str) -> Any:
        """Returns the one value that the query gives."""
        [(value,)] = await self._rows(query)
        return value

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns all rows of the query."""
        return await self._rows(query)

    async def stream(self, query: str) -> AsyncGenerator[tuple[Any, ...]]:
        """Yields the rows, read a thousand at a time."""
        try:
            async with self._connection.cursor() as cursor:
                async for row in cursor.stream(query.encode(), size=1000):
                    yield row
        except psycopg.Error as error:
            raise self._error(error) from None

    @property
    def _called(self) -> str:
        return f"the query of pipeline '{self._pipeline.name}'"

    async def _rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        return await (await self._execute(query, parameters)).fetchall()

    async def _execute(self, query: str, parameters: list[Any] | None = None) -> psycopg.AsyncCursor[Any]:
        try:
            return await self._connection.execute(query.encode(), parameters, prepare=True)
        except psycopg.Error as error:
            raise self._error(error) from None

    def _error(self, error: psycopg.Error) -> PgsluiceError:
        sqlstate, text = error.sqlstate or "", error.diag.message_primary or str(error)
        fact = f"{self._called} failed{server_said(sqlstate, text)}"
        match error:
            case errors.InsufficientPrivilege():
                return TerminalError(fact, "grant the role SELECT on the tables of the query")
            case errors.ReadOnlySqlTransaction():
                return UsageError(fact, "a pipeline only reads")
            case errors.QueryCanceled():
                return TerminalError(fact, "raise statement-timeout of the pipeline")
        if sqlstate.startswith(("42", "0A")):
            return UsageError(
                fact, "correct the query; it is one statement, and names without a schema are looked up in 'schema'"
            )
        if sqlstate.startswith("22"):
            return TerminalError(fact, "an expression of the query fails on a row; correct it")
        return sql_error(error, f"reading {self._called}")


def ranges_of(borders: list[Border], pipeline: Pipeline, first_number: int) -> tuple[RangeRecord, ...]:
    """Returns ranges of all rows up to the last border, in batches of a good size, numbered from ``first_number`` on."""
    before = Border((), 0)
    ranges = []
    chosen = borders[::-1][:: pipeline.borders_per_batch(len(borders))][::-1]
    for number, border in enumerate(chosen, first_number):
        ranges.append(RangeRecord(number, before.key, border.key, rows=border.rows - before.rows))
        before = border
    return tuple(ranges)
