"""Finding the rows that the target refuses among many that it takes.

Rows are tried in ranges. One that fails is cut: a large one into chunks, a chunk where COPY says that it stumbled, or in halves.
So b bad rows among n cost about b · log(CHUNK_ROWS) attempts beyond the n / CHUNK_ROWS of the chunks, and few rows are tried
often.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import psycopg
from psycopg import sql

from pgsluice.shared.rows.copy_text import join_lines, split_fields, split_lines
from pgsluice.shared.wire.position import Position
from pgsluice.worker.dead_letters.rejection import Rejection
from pgsluice.worker.sinks.postgres.merge.staging import copy_into
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import concerns_rows, reason
from pgsluice.worker.sinks.postgres.target.table import TargetTable

CHUNK_ROWS = 1024
"""As many rows take about as long as a statement's own cost, so that cutting them smaller at once would gain nothing."""

_LINE = re.compile(r"COPY [^,]*, \w+ (\d+)")
"""In English ``COPY t, line 3, column c2: …``; most other languages keep that shape. In one that does not, halves are tried."""

RefusedRow = tuple[int, psycopg.Error]


def refused_rows(first: int, end: int, attempt: Callable[[int, int], None]) -> list[RefusedRow]:
    """Those of the rows ``first`` to ``end - 1`` that cannot be applied; the others are, in order. ``attempt`` applies a range in
    a savepoint; it raises what the target says. An error that is not about rows is raised on."""
    refused: list[RefusedRow] = []
    ranges = [(first, end)] if first < end else []
    while ranges:
        low, high = ranges.pop()
        try:
            attempt(low, high)
        except psycopg.Error as error:
            if not concerns_rows(error):
                raise
            bad = low if high - low == 1 else _failed_row(error, low, high)
            if bad is None:
                ranges += _cut(low, high)
            else:
                refused.append((bad, error))
                ranges += [each for each in ((bad + 1, high), (low, bad)) if each[0] < each[1]]
    return refused


def copy_apart(connection: Connection, stage: sql.Composable, target: TargetTable, text: bytes) -> list[Rejection]:
    """Copies the rows of ``text`` that the types of ``stage`` take. The last field of a row is its position."""
    lines = split_lines(text)

    def copy(low: int, high: int) -> None:
        with connection.transaction():
            copy_into(connection, stage, join_lines(lines[low:high]), new=False)

    refused = refused_rows(0, len(lines), copy)
    return [
        Rejection(Position.parse(split_fields(lines[row])[-1].decode()), reason(error, target.table)) for row, error in refused
    ]


def _failed_row(error: psycopg.Error, low: int, high: int) -> int | None:
    """The row at which COPY failed, when the range is small enough to copy the rows before it once more."""
    found = _LINE.match(error.diag.context or "")
    if found is None or high - low > CHUNK_ROWS:
        return None
    row = low + int(found[1]) - 1
    return row if row < high else None


def _cut(low: int, high: int) -> Sequence[tuple[int, int]]:
    """The last range first, for they are taken from the end."""
    size = CHUNK_ROWS if high - low > CHUNK_ROWS else -(-(high - low) // 2)
    return list(reversed(list(pairwise([*range(low, high, size), high]))))
