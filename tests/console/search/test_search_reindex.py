"""``pgsluice search reindex`` orders a copy, unless that would surprise other workers of the group."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.console.search.search_reindex import reindex
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.table_orders import ORDERS, OrderVerb, TableOrder
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.settings import GroupSettings, LogSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket


@pytest.fixture
def settings(nats_server: NatsServer, group: str) -> GroupSettings:
    ensure_bucket(nats_server.settings(), group)
    return GroupSettings(group, LogSettings("info", "text"), nats_server.settings())


def report(settings: GroupSettings, *workers: str) -> None:
    async def write() -> None:
        async with connected(settings.nats, "test") as client:
            for worker in workers:
                await StateBucket(client, GroupNames(settings.group)).put(worker_key(worker), WorkerReport(0))

    asyncio.run(write())


def orders(settings: GroupSettings) -> tuple[TableOrder, ...]:
    async def read() -> tuple[TableOrder, ...]:
        async with connected(settings.nats, "test") as client:
            return (await ORDERS.load(StateBucket(client, GroupNames(settings.group)))).orders

    return asyncio.run(read())


def test_a_search_worker_that_is_alone_has_its_tables_copied_again(settings: GroupSettings) -> None:
    report(settings, "search")
    reindex(settings, ("items", "sales.*"), "search", all_workers=False, wait_s=None)
    [given] = orders(settings)
    assert (given.verb, given.tables) == (OrderVerb.RECOPY, ("items", "sales.*"))


def test_other_workers_are_asked_for(settings: GroupSettings) -> None:
    report(settings, "search", "postgres", "webhook")
    with pytest.raises(UsageError, match="would take the rows again, too: postgres, webhook"):
        reindex(settings, ("items",), "search", all_workers=False, wait_s=None)
    assert orders(settings) == ()
    reindex(settings, ("items",), "search", all_workers=True, wait_s=None)
    assert len(orders(settings)) == 1


def test_a_worker_that_is_not_there_is_named(settings: GroupSettings) -> None:
    with pytest.raises(UsageError, match="has no worker 'search'"):
        reindex(settings, ("items",), "search", all_workers=False, wait_s=None)
    report(settings, "finder")
    with pytest.raises(UsageError, match="it has finder"):
        reindex(settings, ("items",), "search", all_workers=True, wait_s=None)
