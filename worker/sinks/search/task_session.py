"""A process's state from task to task: connections, the size of requests, the destination of each table's documents.

Destinations are read once, and again when the driver has created a new generation (``epoch``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery, bulk_size
from pgsluice.worker.sinks.search.definitions.altered_tables import AlteredForm
from pgsluice.worker.sinks.search.definitions.index_alteration import AlterationStep, altered_properties
from pgsluice.worker.sinks.search.definitions.schema_index import store_history
from pgsluice.worker.sinks.search.document import DocumentForm
from pgsluice.worker.sinks.search.document_fold import At, Defined
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.mapping_file import MappingFile
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.server_connection import ConnectionPool

_KEPT_FORMS = 4096


@dataclass(frozen=True, slots=True)
class Guide:
    """A task's information about destinations of documents. ``epoch`` changes with the generations that tasks must
    write to; ``is_replay``: its changes are dead letters, which may be older than the index. Tables of the oids
    ``copied`` have an index, because all their copied rows were written before this process began."""

    overrides: MappingFile
    group: str = ""
    epoch: int = 0
    is_replay: bool = False
    copied: frozenset[int] = frozenset()


class SearchTaskSession:
    """The session of a single thread."""

    def __init__(self, settings: SearchSinkSettings) -> None:
        self._settings = settings
        self._pool = ConnectionPool(settings)
        self._threads = ThreadPoolExecutor(settings.connections, "pgsluice-bulk")
        self._size = bulk_size(settings)
        self._epoch = -1
        self._forms: dict[tuple[Table, str], DocumentForm] = {}
        self._altered_forms: dict[tuple[Table, str, At], DocumentForm] = {}

    def delivery(self) -> BulkDelivery:
        return BulkDelivery(self._settings, self._pool, self._threads, self._size)

    def store_history(self, group: str, definitions: list[Defined]) -> None:
        """Stores the history of definitions, if configured."""
        name = self._settings.schema_index
        if name and definitions:
            store_history(self._pool.mine(), self.delivery(), name, group, definitions)

    def form_of(self, table: Table, guide: Guide, snapshot: str = "", *, is_whole_later: bool = False) -> DocumentForm:
        """Returns the form of documents of the table's changes, or of its rows in ``snapshot``, which must not be read
        yet if they are ``is_whole_later``. Creates a missing generation, and fields that its index lacks. Raises as
        ``IndexCatalog``."""
        self._forget_before(guide.epoch)
        form = self._forms.get((table, snapshot))
        if form is None:
            catalog = self._catalog(guide)
            if snapshot:
                generation = catalog.of_snapshot(table, snapshot, is_whole_later=is_whole_later)
            else:
                generation = catalog.ensured(table, may_add=not guide.is_replay, is_copied=table.oid in guide.copied)
            form = self._forms[table, snapshot] = DocumentForm(catalog.mapping(table), generation.write_alias)
        return form

    def altered_form(self, table: Table, guide: Guide, alias: str, steps: tuple[AlterationStep, ...]) -> DocumentForm:
        """Returns the form of rows that come before ``steps``, for the index that is read by ``alias``, which exists
        already."""
        self._forget_before(guide.epoch)
        key = table, alias, steps[0].at
        form = self._altered_forms.get(key)
        if form is None:
            catalog = self._catalog(guide)
            mapping = catalog.mapping(table)
            [found] = [each for each in catalog.generations(alias) if each.is_read]
            catalog.add_properties(altered_properties(mapping.properties, steps), found)
            form = self._altered_forms[key] = AlteredForm(mapping, found.generation.write_alias, steps=steps)
        return form

    def _catalog(self, guide: Guide) -> IndexCatalog:
        return IndexCatalog(self._pool.mine(), self._settings, guide.overrides, guide.group)

    def _forget_before(self, epoch: int) -> None:
        if epoch != self._epoch or len(self._forms) > _KEPT_FORMS:
            self._epoch = epoch
            self.forget()

    def forget(self) -> None:
        """Forgets destinations: they may have changed."""
        self._forms.clear()
        self._altered_forms.clear()

    def field_names(self) -> frozenset[str]:
        """Returns names of the fields of all documents made so far."""
        return frozenset(name for form in self._all_forms() for name in form.field_names)

    def nulled(self) -> int:
        """Returns the number of values left out since the call before."""
        return sum(_take(form.nulled) for form in self._all_forms())

    def _all_forms(self) -> list[DocumentForm]:
        return [*self._forms.values(), *self._altered_forms.values()]


def _take(count: list[int]) -> int:
    taken, count[0] = count[0], 0
    return taken


_sessions: list[tuple[SearchSinkSettings, SearchTaskSession]] = []
"""The process's session, one at most."""


def process_session(settings: SearchSinkSettings) -> SearchTaskSession:
    if not _sessions or _sessions[0][0] != settings:
        _sessions[:] = [(settings, SearchTaskSession(settings))]
    return _sessions[0][1]
