"""Page ranges tile every relation, whatever its size."""

from __future__ import annotations

import itertools
import re

import pytest

from pgsluice.replicator.snapshot.plan import plan_ranges
from pgsluice.replicator.source.catalog import CopiedRelation, CopiedTable
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

PAGE = 8192


def column(name: str) -> Column:
    return Column(name, 25, "text", -1, False, None, False, "", "")


def copied_table(*relations: CopiedRelation, columns: tuple[str, ...] = ("a",), row_filter: str = "") -> CopiedTable:
    table = Table(1, "public", "t", ReplicaIdentity.DEFAULT, tuple(column(name) for name in columns))
    return CopiedTable(table, relations, row_filter, None)


def relation(pages: int, name: str = "t", schema: str = "public") -> CopiedRelation:
    return CopiedRelation(oid=1, schema=schema, name=name, filenode=1, size_bytes=pages * PAGE)


def borders(query: str) -> tuple[int, int | None]:
    """First page and end page (None: open) of a query's condition."""
    first = re.search(r"ctid >= '\((\d+),0\)'", query)
    end = re.search(r"ctid < '\((\d+),0\)'", query)
    assert first is not None
    return int(first[1]), int(end[1]) if end else None


@pytest.mark.parametrize("pages", [0, 1, 2, 7, 8, 9, 15, 16, 17, 1000])
@pytest.mark.parametrize("range_bytes", [1, PAGE, 8 * PAGE, 8 * PAGE + 1, 1 << 40])
def test_ranges_tile_a_relation_and_only_the_last_is_open(pages: int, range_bytes: int) -> None:
    ranges = plan_ranges(copied_table(relation(pages)), range_bytes, PAGE)
    found = [borders(pages_range.query) for pages_range in ranges]
    assert found[0][0] == 0
    assert found[-1][1] is None
    assert all(end is not None and end == following for (_, end), (following, _) in itertools.pairwise(found))
    assert sum(pages_range.size_bytes for pages_range in ranges) == pages * PAGE


@pytest.mark.parametrize(
    ("pages", "tasks", "sizes"), [(9, 2, [5, 4]), (17, 4, [5, 5, 5, 2]), (8, 4, [8]), (33, 4, [5] * 6 + [3])]
)
def test_ranges_are_even_so_that_tasks_end_together(pages: int, tasks: int, sizes: list[int]) -> None:
    ranges = plan_ranges(copied_table(relation(pages)), 8 * PAGE, PAGE, tasks)
    assert [pages_range.size_bytes // PAGE for pages_range in ranges] == sizes


def test_a_size_that_is_no_whole_number_of_pages_is_covered() -> None:
    ranges = plan_ranges(copied_table(CopiedRelation(1, "public", "t", 1, 2 * PAGE + 1)), PAGE, PAGE)
    assert [borders(pages.query) for pages in ranges] == [(0, 1), (1, 2), (2, None)]


def test_ranges_are_numbered_over_all_partitions() -> None:
    table = copied_table(relation(2, "one"), relation(0, "two"), relation(1, "three"))
    ranges = plan_ranges(table, PAGE, PAGE)
    assert [(pages.number, pages.name) for pages in ranges] == [
        (1, "public.one"),
        (2, "public.one"),
        (3, "public.two"),
        (4, "public.three"),
    ]


def test_names_are_quoted_and_the_filter_stands_in_parentheses() -> None:
    table = copied_table(relation(1, 'we"ird', "My Schema"), columns=("select", 'a"b'), row_filter="a = 1 OR b = 2")
    [pages] = plan_ranges(table, PAGE, PAGE)
    assert pages.query == (
        'COPY (SELECT "select", "a""b" FROM ONLY "My Schema"."we""ird" WHERE ctid >= \'(0,0)\' AND (a = 1 OR b = 2)) TO STDOUT'
    )
    assert pages.lock == 'SELECT FROM ONLY "My Schema"."we""ird" LIMIT 0'
