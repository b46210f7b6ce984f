"""Commands about the tables of a group, and their outcomes, under ``orders`` in the state bucket.

A command writes an order, the group's replicator carries it out, while it streams or when it starts, and writes the
outcome. An order is carried out again when the replicator died before that: its effect may exist already.

All orders are in one record, so a reader of new ones reads one key, and none overtakes another.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.broker.wishes import WishKey

MOST_DONE = 50
"""Finished orders that are kept, for commands that wait for their outcome."""


class OrderVerb(enum.StrEnum):
    ADD = "add"
    REMOVE = "remove"
    RECOPY = "recopy"
    FORGET = "forget"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """``table`` is a table's name, or the pattern if it matches no table. ``text`` is the end of a sentence that begins
    with it; ``remedy`` comes with a refusal."""

    table: str
    is_refused: bool
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class TableOrder:
    """``tables`` are patterns as they were written; without a schema, ``schema`` of the replicator applies. ``request``
    identifies a request that may be repeated. ``taken_at`` is when the replicator began, ``done_at`` when ``outcomes``
    were known. ``waits_for`` are the workers that must act before the replicator can carry out an order that it took."""

    number: int
    verb: OrderVerb
    tables: tuple[str, ...]
    ordered_at: TimeText
    without_copy: bool = False
    request: str = ""
    taken_at: TimeText = ""
    done_at: TimeText = ""
    outcomes: tuple[TableOutcome, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableOrders:
    """``newest`` is the highest number ever given to an order."""

    newest: int = 0
    orders: tuple[TableOrder, ...] = ()

    @property
    def open(self) -> tuple[TableOrder, ...]:
        return tuple(order for order in self.orders if not order.done_at)

    def order(self, number: int) -> TableOrder | None:
        return next((order for order in self.orders if order.number == number), None)

    def of_request(self, request: str) -> TableOrder | None:
        return next((order for order in self.orders if request and order.request == request), None)

    def with_order(self, order: TableOrder) -> TableOrders:
        """Returns the orders with ``order`` replacing the one of its number, or as the newest."""
        orders = [each for each in self.orders if each.number != order.number] + [order]
        kept_done = sorted((each.number for each in orders if each.done_at), reverse=True)[:MOST_DONE]
        kept = (each for each in orders if not each.done_at or each.number in kept_done)
        return TableOrders(max(self.newest, order.number), tuple(sorted(kept, key=lambda each: each.number)))


ORDERS = WishKey("orders", TableOrders())


async def give_order(
    bucket: StateBucket, verb: OrderVerb, tables: tuple[str, ...], *, without_copy: bool = False, request: str = ""
) -> int:
    """Returns the order's number; if ``request`` has made an order already, the number of that order."""

    def with_new(orders: TableOrders) -> TableOrders:
        if orders.of_request(request) is not None:
            return orders
        return orders.with_order(TableOrder(orders.newest + 1, verb, tables, now(), without_copy, request))

    changed = (await ORDERS.change(bucket, with_new)).value
    made = changed.of_request(request)
    return changed.newest if made is None else made.number


async def note_taken(bucket: StateBucket, order: TableOrder) -> bool:
    """Notes that the order was taken. Returns whether it is still to be carried out: another process may have done so since it
    was read."""
    return await _note(bucket, replace(order, taken_at=order.taken_at or now()))


async def note_waiting(bucket: StateBucket, order: TableOrder, workers: tuple[str, ...]) -> None:
    """Notes which workers the order waits for, when that is news."""
    if order.waits_for != workers:
        await _note(bucket, replace(order, taken_at=order.taken_at or now(), waits_for=workers))


async def note_done(bucket: StateBucket, order: TableOrder, outcomes: tuple[TableOutcome, ...]) -> None:
    await _note(bucket, replace(order, taken_at=order.taken_at or now(), done_at=now(), outcomes=outcomes))


async def _note(bucket: StateBucket, order: TableOrder) -> bool:
    """Replaces the order of this number in the record while it is open: a finished order is never opened again."""

    def changed(orders: TableOrders) -> TableOrders:
        known = orders.order(order.number)
        return orders if known is None or known.done_at else orders.with_order(order)

    return order in (await ORDERS.change(bucket, changed)).value.orders
