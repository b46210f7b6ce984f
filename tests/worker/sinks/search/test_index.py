"""Several tasks that need an index at the same moment make one, and all of them write to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from pgsluice.worker.sinks.search.index import Generation, IndexCatalog
from pgsluice.worker.sinks.search.server_connection import ServerConnection
from tests.changes_builder import table
from tests.servers.opensearch import FakeOpenSearch
from tests.worker.sinks.search.sinks import NO_OVERRIDES, search_settings

TASKS = 4
TABLES = [table(f"public.t{n}", "id bigint") for n in range(40)]


def test_tasks_that_begin_together_make_one_index(fake_opensearch: FakeOpenSearch, group: str) -> None:
    settings = search_settings(fake_opensearch.url, group)
    together = Barrier(TASKS)

    def ensure_all(_: int) -> list[Generation]:
        catalog = IndexCatalog(ServerConnection(settings), settings, NO_OVERRIDES)
        catalog.dialect()
        made = []
        try:
            for each in TABLES:
                together.wait()
                made.append(catalog.ensured(each))
        except BaseException:
            together.abort()
            raise
        return made

    with ThreadPoolExecutor(TASKS) as threads:
        found = list(threads.map(ensure_all, range(TASKS)))
    assert [name for name in fake_opensearch.indices() if name.startswith(group)] == sorted(each.name for each in found[0])
    assert found == [[Generation(f"{group}_public_{each.name}", 1) for each in TABLES]] * TASKS
