"""Divides relations into page ranges, each with its query: pure, no I/O.

A table is read in ranges of its pages, by ``ctid`` (manual: "System Columns"). Sizes are from the files, never from
statistics, so a table that was never analysed is copied whole; the last range of each relation has no end, so a
relation that has grown since its size was asked is copied whole too.

Rows in a range come in the sequence of the pages, the same whenever the range is read under the same snapshot, as long
as the relation was not rewritten (then its filenode differs). Publishing relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from pgsluice.replicator.source.catalog import CopiedRelation, CopiedTable


@dataclass(frozen=True, slots=True)
class PageRange:
    """One COPY. ``number`` counts the ranges of the table from 1, over all its relations. ``name`` is the relation's,
    for readers; ``query`` is the COPY statement, ``lock`` the statement that keeps the relation from being rewritten
    meanwhile.

    A range of a query's rows (``replicator.pipelines``) is of no relation: ``relation_oid`` and ``filenode`` are 0.
    """

    table_oid: int
    number: int
    name: str
    relation_oid: int
    filenode: int
    size_bytes: int
    lock: str
    query: str

    @property
    def is_of_query(self) -> bool:
        return self.relation_oid == 0


def plan_ranges(table: CopiedTable, range_bytes: int, page_bytes: int, tasks: int = 1) -> list[PageRange]:
    """Returns at least one range for each relation, so that a table without rows has one too, and none of more than
    ``range_bytes`` (or one page). A relation of several ranges has a multiple of ``tasks``, all but the last of one
    size, so that as many tasks end at about the same time."""
    return [
        PageRange(
            table_oid=table.table.oid,
            number=number,
            name=f"{relation.schema}.{relation.name}",
            relation_oid=relation.oid,
            filenode=relation.filenode,
            size_bytes=size_bytes,
            lock=_lock(relation),
            query=_copy_query(table, relation, condition),
        )
        for number, (relation, condition, size_bytes) in enumerate(
            _pieces(table, max(1, range_bytes // page_bytes), page_bytes, tasks), start=1
        )
    ]


def _pieces(table: CopiedTable, most_pages: int, page_bytes: int, tasks: int) -> Iterator[tuple[CopiedRelation, str, int]]:
    """Yields each relation with conditions that tile it and how many bytes of it fulfil each."""
    for relation in table.relations:
        pages = -(-relation.size_bytes // page_bytes)
        pages_each = _even_share(pages, most_pages, tasks)
        for first in range(0, max(pages, 1), pages_each):
            end = first + pages_each
            condition = f"ctid >= '({first},0)'"
            if end < pages:
                condition += f" AND ctid < '({end},0)'"
            yield relation, condition, (min(end, pages) - first) * page_bytes


def _even_share(pages: int, most_pages: int, tasks: int) -> int:
    """Returns pages of one range: at most ``most_pages``, and so that the number of ranges, if not one, divides by
    ``tasks``."""
    ranges = -(-pages // most_pages)
    if ranges <= 1:
        return most_pages
    return -(-pages // (-(-ranges // tasks) * tasks))


def _lock(relation: CopiedRelation) -> str:
    """Returns a query, because its lock asks for no more than COPY does; LOCK TABLE wants a privilege on the whole
    table."""
    return sql.SQL("SELECT FROM ONLY {} LIMIT 0").format(sql.Identifier(relation.schema, relation.name)).as_string(None)


def _copy_query(table: CopiedTable, relation: CopiedRelation, condition: str) -> str:
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.table.columns)
    if table.row_filter:
        condition += f" AND ({table.row_filter})"
    query = sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        columns,
        sql.Identifier(relation.schema, relation.name),
        sql.SQL(condition),  # the filter is SQL that the server itself wrote
    )
    return query.as_string(None)
