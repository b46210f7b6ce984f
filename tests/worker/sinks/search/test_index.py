"""Several tasks that need an index at the same moment make one, and all of them write to it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.index_name import WRITE, Generation
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.server_connection import ServerConnection
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.sinks import NO_OVERRIDES, search_settings

TASKS = 4
TABLES = [table(f"public.t{n}", "id bigint") for n in range(20)]
FIRST, SECOND = "00000000000003E8-a", "0000000000001388-b"

Ask = Callable[[IndexCatalog, Table, int], Generation]
"""What a task, which has that number, asks for."""


@pytest.fixture
def settings(search_server: SearchServer, group: str) -> SearchSinkSettings:
    return search_settings(search_server.url, group)


def asked_together(settings: SearchSinkSettings, ask: Ask) -> list[list[Generation]]:
    """What each of the tasks was told of each table."""
    together = Barrier(TASKS)

    def ask_of_all(task: int) -> list[Generation]:
        catalog = IndexCatalog(ServerConnection(settings), settings, NO_OVERRIDES)
        catalog.server()
        made = []
        try:
            for each in TABLES:
                together.wait()
                made.append(ask(catalog, each, task))
        except BaseException:
            together.abort()
            raise
        return made

    with ThreadPoolExecutor(TASKS) as threads:
        return list(threads.map(ask_of_all, range(TASKS)))


def generations(group: str, number: int) -> list[Generation]:
    return [Generation(f"{group}_public_{each.name}", number) for each in TABLES]


def indexes_of(server: SearchServer, group: str) -> list[str]:
    return [name for name in server.indices() if name.startswith(f"{group}_")]


def searched(server: SearchServer, group: str) -> list[str]:
    """The indexes that have a table's alias."""
    found = server.ask("GET", "/_cat/aliases?format=json")
    return sorted(each["index"] for each in found if each["alias"].startswith(f"{group}_") and not each["alias"].endswith(WRITE))


def names(found: list[Generation]) -> list[str]:
    return sorted(each.name for each in found)


@pytest.mark.parametrize("snapshot", ["", FIRST])
def test_tasks_that_begin_together_make_one_index(
    settings: SearchSinkSettings, search_server: SearchServer, group: str, snapshot: str
) -> None:
    """Be it for changes or for copied rows."""
    ask: Ask = lambda catalog, of, _: catalog.of_snapshot(of, snapshot) if snapshot else catalog.ensured(of)  # noqa: E731
    assert asked_together(settings, ask) == [generations(group, 1)] * TASKS
    assert indexes_of(search_server, group) == searched(search_server, group) == names(generations(group, 1))


def test_tasks_that_copy_a_table_again_fill_one_index_behind_the_alias(
    settings: SearchSinkSettings, search_server: SearchServer, group: str
) -> None:
    """While others write its changes, and give the one that is searched a new field."""
    asked_together(settings, lambda catalog, of, _: catalog.ensured(of))
    wider = {each.name: replace(each, columns=table("public.t", "id bigint", "note text").columns) for each in TABLES}

    def ask(catalog: IndexCatalog, of: Table, task: int) -> Generation:
        return catalog.ensured(wider[of.name]) if task % 2 else catalog.of_snapshot(of, SECOND)

    first, second = generations(group, 1), generations(group, 2)
    assert asked_together(settings, ask) == [second, first] * (TASKS // 2)
    assert indexes_of(search_server, group) == names([*first, *second])
    assert searched(search_server, group) == names(first)
    for each in first:
        assert "note" in search_server.ask("GET", f"/{each.name}/_mapping")[each.name]["mappings"]["properties"]


def test_changes_and_copied_rows_that_come_together_are_searched_in_one_index(
    settings: SearchSinkSettings, search_server: SearchServer, group: str
) -> None:
    """Whichever made it: rows of the copy go to another one if it was not theirs."""
    asked_together(settings, lambda catalog, of, task: catalog.ensured(of) if task % 2 else catalog.of_snapshot(of, FIRST))
    assert searched(search_server, group) == names(generations(group, 1))
