"""Orders about tables: numbered, kept until they are done, written by two sides."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.table_orders import (
    MOST_DONE,
    ORDERS,
    OrderVerb,
    TableOrder,
    TableOrders,
    TableOutcome,
    give_order,
    note_done,
    note_taken,
)
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.wire.names import GroupNames
from tests.servers import NatsServer

SETTINGS = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=60)


def test_orders_that_are_done_are_kept_for_a_while_and_open_ones_for_ever() -> None:
    orders = TableOrders().with_order(TableOrder(1, OrderVerb.ADD, ("t",), "then"))
    for number in range(2, MOST_DONE + 10):
        orders = orders.with_order(TableOrder(number, OrderVerb.ADD, ("t",), "then", done_at="then"))
    assert [order.number for order in orders.open] == [1]
    assert len(orders.orders) == MOST_DONE + 1
    assert orders.newest == MOST_DONE + 9
    assert orders.order(2) is None


def test_both_sides_write_and_nothing_is_lost(nats_server: NatsServer, group: str) -> None:
    async def write() -> TableOrders:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.ensure(SETTINGS)
            given = [give_order(bucket, OrderVerb.REMOVE, (f"t{n}",)) for n in range(8)]
            numbers = await asyncio.gather(*given)
            assert sorted(numbers) == list(range(1, 9))
            first, second, *_ = (await ORDERS.load(bucket)).open
            outcome = TableOutcome(table="public.t", is_refused=True, text="is none", remedy="look")
            await asyncio.gather(
                note_taken(bucket, first), note_done(bucket, second, (outcome,)), give_order(bucket, OrderVerb.ADD, ("x",))
            )
            return await ORDERS.load(bucket)

    orders = asyncio.run(write())
    assert (orders.newest, len(orders.open)) == (9, 8)
    taken, done = orders.order(1), orders.order(2)
    assert taken is not None
    assert taken.taken_at
    assert done is not None
    assert replace(done.outcomes[0], remedy="") == TableOutcome("public.t", True, "is none")


def test_what_asks_twice_gives_one_order(nats_server: NatsServer, group: str) -> None:
    async def write() -> tuple[list[int], TableOrders]:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.ensure(SETTINGS)
            asked = [("t", "one"), ("u", ""), ("t", "one")]
            numbers = [await give_order(bucket, OrderVerb.RETRY, (table,), request=request) for table, request in asked]
            return numbers, await ORDERS.load(bucket)

    numbers, orders = asyncio.run(write())
    assert (numbers, len(orders.orders)) == ([1, 2, 1], 2)


def test_an_order_that_is_done_is_never_opened_again_by_a_process_that_read_it_before(
    nats_server: NatsServer, group: str
) -> None:
    async def write() -> TableOrders:
        async with connected(nats_server.settings(), "test") as client:
            bucket = StateBucket(client, GroupNames(group))
            await bucket.ensure(SETTINGS)
            await give_order(bucket, OrderVerb.REMOVE, ("t",))
            [order] = (await ORDERS.load(bucket)).open
            await note_done(bucket, order, (TableOutcome("public.t", False, "is gone"),))
            assert not await note_taken(bucket, order)
            await note_done(bucket, order, ())
            return await ORDERS.load(bucket)

    orders = asyncio.run(write())
    assert orders.open == ()
    [order] = orders.orders
    assert [outcome.text for outcome in order.outcomes] == ["is gone"]
