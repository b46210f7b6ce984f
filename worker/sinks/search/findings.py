"""Findings of ``pgsluice check`` about a search server: addresses, TLS, and whether the tables fit. Creates nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.http.receiver import Receiver
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.index_name import index_names
from pgsluice.worker.sinks.search.mapping_file import MappingFile, load_mapping
from pgsluice.worker.sinks.search.options import OPTIONS, SearchSinkSettings
from pgsluice.worker.sinks.search.server_connection import ServerConnection


def find(worker: WorkerSettings, settings: SearchSinkSettings, incoming: Incoming) -> list[Finding]:
    """The server is asked what it is, and which indexes it has."""
    found = Findings(Subject.SINK)
    for url in settings.urls:
        receiver = Receiver.parse(url, OPTIONS)
        if not receiver.is_tls:
            fact = f"{receiver.origin} is written to without TLS: rows and credentials can be read on the way"
            found.note("search-plain", Severity.WARNING, fact, "give a https:// URL")
    found.take(index_names(settings).findings(incoming.tables or ()))
    overrides: MappingFile | None = None
    with found.looking("search-mapping"):
        overrides = load_mapping(settings.mapping_file)
        if incoming.tables is not None:
            overrides.check_tables(incoming.tables)
    if overrides is None:
        return list(found)
    try:
        with contextlib.closing(ServerConnection(settings)) as connection:
            catalog = IndexCatalog(connection, settings, overrides, worker.group)
            catalog.server()
            _look_at_tables(found, catalog, incoming.tables or ())
    except PgsluiceError as error:
        found.take([Finding.of(error, "search-server", Subject.SINK)])
    return list(found)


def _look_at_tables(found: Findings, catalog: IndexCatalog, tables: Sequence[Table]) -> None:
    for table in tables:
        with found.looking("search-index"):
            catalog.check_fields(table)
        if not table.key:
            fact = f"table '{table.qualified_name}' has no key: rows are added to its index, an update or delete stops the worker"
            found.note("search-no-key", Severity.WARNING, fact, "give the source table a primary key")
