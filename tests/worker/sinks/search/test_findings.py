"""What ``pgsluice check`` finds of a search server before a worker writes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.options import SINK
from pgsluice.worker.sinks.search.server_connection import ServerConnection
from tests.servers.child import free_port
from tests.servers.opensearch import FakeOpenSearch
from tests.worker.sinks.search.sinks import NO_OVERRIDES, search_settings
from tests.worker.sinks.settings import worker_settings

ORDERS = table("shop.orders", "id bigint", "note text")
PLAIN = ("search-plain", Severity.WARNING)


def look(url: str, group: str, *tables: Table, **changed: Any) -> list[tuple[str, Severity]]:
    settings = search_settings(url, group, **changed)
    return [(each.check, each.severity) for each in SINK.look(worker_settings(group), settings, Incoming(tables=tables))]


def test_a_server_that_fits_is_told_of_only_because_it_is_reached_without_tls(
    fake_opensearch: FakeOpenSearch, group: str
) -> None:
    assert look(fake_opensearch.url, group, ORDERS) == [PLAIN]
    assert not [name for name in fake_opensearch.indices() if name.startswith(group)]


def test_a_server_that_is_not_there_or_not_allowed_is_found(group: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert look(url, group) == [PLAIN, ("search-server", Severity.ERROR)]
    assert ("sink-settings", Severity.ERROR) in look(url, group, allow_hosts=())


@pytest.mark.parametrize("changed", [{"user": "u"}, {"index": "all"}])
def test_settings_that_cannot_be_meant_are_found(fake_opensearch: FakeOpenSearch, group: str, changed: dict[str, str]) -> None:
    assert look(fake_opensearch.url, group, **changed) == [("sink-settings", Severity.ERROR), PLAIN]


def test_an_index_that_does_not_fit_its_table_is_found(fake_opensearch: FakeOpenSearch, group: str) -> None:
    settings = search_settings(fake_opensearch.url, group)
    connection = ServerConnection(settings)
    IndexCatalog(connection, settings, NO_OVERRIDES).ensured(ORDERS)
    connection.close()
    other = table("shop.orders", "id bigint", "note integer")
    assert look(fake_opensearch.url, group, other) == [PLAIN, ("search-index", Severity.ERROR)]


def test_an_index_of_another_group_is_found(fake_opensearch: FakeOpenSearch, group: str) -> None:
    settings = search_settings(fake_opensearch.url, group)
    connection = ServerConnection(settings)
    IndexCatalog(connection, settings, NO_OVERRIDES, "others").ensured(ORDERS)
    connection.close()
    assert look(fake_opensearch.url, group, ORDERS) == [PLAIN, ("search-index", Severity.ERROR)]


def test_tables_that_would_share_an_index_or_have_no_key_are_found(fake_opensearch: FakeOpenSearch, group: str) -> None:
    same = table("shop.Orders", "id bigint", "note text")
    assert look(fake_opensearch.url, group, ORDERS, same) == [PLAIN, ("search-index", Severity.ERROR)]
    keyless = table("shop.log", "line text", key=(), identity=ReplicaIdentity.FULL)
    assert look(fake_opensearch.url, group, keyless) == [PLAIN, ("search-no-key", Severity.WARNING)]


def test_a_mapping_file_that_speaks_of_no_column_is_found(fake_opensearch: FakeOpenSearch, group: str, tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    path.write_text("tables: {orders: {columns: {gone: {type: keyword}}}}")
    assert ("search-mapping", Severity.ERROR) in look(fake_opensearch.url, group, ORDERS, mapping_file=str(path))
