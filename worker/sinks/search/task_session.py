"""What a process keeps from task to task: connections, how much the server takes at once, where each table's documents go.

Where they go is asked for once, and again when the driver has made a new generation (``epoch``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery, bulk_size
from pgsluice.worker.sinks.search.document import DocumentForm
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.mapping_file import MappingFile
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.server_connection import ConnectionPool

_KEPT_FORMS = 4096


class TaskSession:
    """For one thread."""

    def __init__(self, settings: SearchSinkSettings) -> None:
        self._settings = settings
        self._pool = ConnectionPool(settings)
        self._threads = ThreadPoolExecutor(settings.connections, "pgsluice-bulk")
        self._size = bulk_size(settings)
        self._epoch = -1
        self._forms: dict[tuple[Table, str], DocumentForm] = {}

    def delivery(self) -> BulkDelivery:
        return BulkDelivery(self._settings, self._pool, self._threads, self._size)

    def form_of(self, table: Table, overrides: MappingFile, epoch: int, snapshot: str = "") -> DocumentForm:
        """Of the table's changes, or of its rows in ``snapshot``. Makes the generation where there is none, and fields that its
        index lacks. Raises as ``IndexCatalog``."""
        if epoch != self._epoch or len(self._forms) > _KEPT_FORMS:
            self._epoch = epoch
            self._forms.clear()
        form = self._forms.get((table, snapshot))
        if form is None:
            catalog = IndexCatalog(self._pool.mine(), self._settings, overrides)
            generation = catalog.of_snapshot(table, snapshot) if snapshot else catalog.ensured(table)
            form = self._forms[table, snapshot] = DocumentForm(catalog.mapping(table), generation.write_alias)
        return form

    def forget(self) -> None:
        """What was found: it may have changed."""
        self._forms.clear()

    def field_names(self) -> frozenset[str]:
        """Of all documents that were made."""
        return frozenset(field.name for form in self._forms.values() for field in form.mapping.fields)

    def nulled(self) -> int:
        """How many values were left out since the call before."""
        return sum(_take(form.nulled) for form in self._forms.values())


def _take(count: list[int]) -> int:
    taken, count[0] = count[0], 0
    return taken


_sessions: list[tuple[SearchSinkSettings, TaskSession]] = []
"""Of this process: one at most."""


def process_session(settings: SearchSinkSettings) -> TaskSession:
    if not _sessions or _sessions[0][0] != settings:
        _sessions[:] = [(settings, TaskSession(settings))]
    return _sessions[0][1]
