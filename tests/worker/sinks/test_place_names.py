"""Tables that would meet at the other side are found before the first row: by ``pgsluice check`` and when a worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.finding import Finding, Severity
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import table
from pgsluice.worker.sinks.file.options import SINK as FILE
from pgsluice.worker.sinks.file.sink import FileSink
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.nats.options import SINK as NATS
from pgsluice.worker.sinks.nats.sink import NatsSink
from pgsluice.worker.sinks.search.options import SINK as SEARCH
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.servers import NatsServer
from tests.servers.opensearch import FakeOpenSearch
from tests.worker.sinks.file.output import file_settings
from tests.worker.sinks.nats.target import nats_settings
from tests.worker.sinks.search.sinks import search_settings
from tests.worker.sinks.settings import worker_settings
from tests.worker.stage import Stage


def tables(*names: str) -> list[Table]:
    return [table(name, "id bigint") for name in names]


ONE_OF_EACH_CASE = tables("shop.Users", "shop.orders", "shop.users")
JOINED_ALIKE = tables("sales_eu.orders", "sales.eu_orders")
OF_TWO_SCHEMAS = tables("a.orders", "b.orders")


def of_names(found: list[Finding]) -> list[tuple[Severity, str, str]]:
    return [(each.severity, each.fact, each.remedy) for each in found if " would go to " in each.fact]


@pytest.mark.parametrize(
    ("incoming", "index", "fact", "remedy"),
    [
        (
            ONE_OF_EACH_CASE,
            "{schema}_{table}",
            "tables 'shop.Users' and 'shop.users' would go to indexes 'shop_Users' and 'shop_users',"
            " which are one: names of indexes are in lower case",
            "give one of them another name on the way, by a route",
        ),
        (
            JOINED_ALIKE,
            "{schema}_{table}",
            "tables 'sales_eu.orders' and 'sales.eu_orders' would go to one index, 'sales_eu_orders'",
            "write search-index: {schema}-{table}, or give one of them another name on the way, by a route",
        ),
        (
            OF_TWO_SCHEMAS,
            "{table}",
            "tables 'a.orders' and 'b.orders' would go to one index, 'orders'",
            "write search-index: {schema}-{table}, or give one of them another name on the way, by a route",
        ),
    ],
)
def test_tables_of_one_index_are_found_with_a_pattern_that_keeps_them_apart(
    fake_opensearch: FakeOpenSearch, group: str, incoming: list[Table], index: str, fact: str, remedy: str
) -> None:
    settings = search_settings(fake_opensearch.url, group, index=index)
    found = SEARCH.look(worker_settings(group), settings, Incoming(tables=incoming))
    assert of_names(found) == [(Severity.ERROR, fact, remedy)]


def test_a_table_whose_index_is_that_of_definitions_is_found(fake_opensearch: FakeOpenSearch, group: str) -> None:
    settings = search_settings(fake_opensearch.url, group, schema_index=f"{group}_shop_users")
    found = of_names(SEARCH.look(worker_settings(group), settings, Incoming(tables=tables("shop.Users", "shop.orders"))))
    fact = f"table 'shop.Users' would go to index '{group}_shop_Users', which is that of search-schema-index"
    assert found == [
        (Severity.ERROR, fact, "write another search-schema-index, or give the table another name on the way, by a route")
    ]


@pytest.mark.parametrize(
    ("incoming", "subject", "is_found"),
    [
        (OF_TWO_SCHEMAS, "shop.{table}.{operation}", True),
        (JOINED_ALIKE, "shop.{schema}_{table}", True),
        (OF_TWO_SCHEMAS, "shop.{schema}.{operation}", False),
        (OF_TWO_SCHEMAS, "shop.changes", False),
        (ONE_OF_EACH_CASE, "", False),
        (tables("a.b.c", "a.b_c", "a.b%2Ec"), "", False),
    ],
)
def test_tables_of_one_subject_are_told_of_where_the_pattern_names_tables(
    nats_server: NatsServer, group: str, incoming: list[Table], subject: str, is_found: bool
) -> None:
    """Their messages say whose they are, so nothing is lost, and who names no tables means it."""
    worker, settings = worker_settings(group, nats_server.settings()), nats_settings(group, subject=subject)
    found = of_names(NATS.look(worker, settings, Incoming(tables=incoming)))
    assert [severity for severity, _, _ in found] == [Severity.WARNING] * is_found
    for _, fact, remedy in found:
        assert f"tables '{incoming[0].qualified_name}' and '{incoming[1].qualified_name}' " in fact
        assert remedy.startswith("write nats-subject: {stream}.{schema}.{table}.{operation}")


def without_case(directory: Path, *names: str) -> None:
    """Makes the directory take two cases of these names for one, as file systems of macOS and Windows do."""
    for name in names:
        (directory / name).mkdir(exist_ok=True)
        (directory / name.swapcase()).symlink_to(name)


def test_directories_that_differ_in_case_are_found_where_the_file_system_takes_them_for_one(tmp_path: Path) -> None:
    parquet, lines = (file_settings(tmp_path, file_format=name) for name in ("parquet", "json"))
    incoming = Incoming(tables=ONE_OF_EACH_CASE)
    assert FILE.look(worker_settings("g"), parquet, incoming) == []
    without_case(tmp_path, "any")
    [(severity, fact, _)] = of_names(FILE.look(worker_settings("g"), parquet, incoming))
    assert severity is Severity.ERROR
    assert fact.startswith("tables 'shop.Users' and 'shop.users' would go to directories 'shop.Users' and 'shop.users'")
    assert FILE.look(worker_settings("g"), lines, incoming) == []


def named(stage: Stage, published: list[Table]) -> None:
    """A row that waits to be applied, of a group whose replicator has named these tables."""
    stage.publish(1)
    stage.loop.run(store_tables(stage.bucket, published, "UTF8"))


def test_a_worker_refuses_tables_of_one_index_before_it_writes_any(
    stage: Stage, fake_opensearch: FakeOpenSearch, group: str
) -> None:
    named(stage, ONE_OF_EACH_CASE)
    stage.start(lambda worker: SearchSink(worker, search_settings(fake_opensearch.url, group)))
    with pytest.raises(TerminalError, match=r"tables 'shop\.Users' and 'shop\.users' would go to indexes"):
        stage.finish()
    assert not [name for name in fake_opensearch.indices() if name.startswith(group)]


def test_a_worker_refuses_tables_of_one_directory_before_it_writes_any(stage: Stage, tmp_path: Path) -> None:
    named(stage, ONE_OF_EACH_CASE)
    output = tmp_path / "output"
    output.mkdir()
    without_case(output, "any")
    stage.start(lambda worker: FileSink(worker, file_settings(output, file_format="parquet")))
    with pytest.raises(TerminalError, match=r"tables 'shop\.Users' and 'shop\.users' would go to directories"):
        stage.finish()
    assert not list(output.rglob("*.parquet"))


def test_a_worker_tells_of_tables_of_one_subject_and_goes_on(stage: Stage, nats_server: NatsServer, group: str) -> None:
    named(stage, OF_TWO_SCHEMAS)
    settings = nats_settings(f"{group}-out", subject="out.{table}")
    stage.start(lambda worker: NatsSink(worker, settings))
    stage.wait_for_log("tables share a place")
    stage.wait_for_log("reading")
    stage.stop()
