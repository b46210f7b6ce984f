"""A group's tables: which it has and why, and commands about them, which its replicator carries out."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import bucket_of, found_bucket
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.tables import ListedTable, check_takes_orders, listed_tables
from pgsluice.console.units.table_pauses import TablePause, write_pause
from pgsluice.replicator.membership.membership import load_membership
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.table_orders import ORDERS, OrderVerb, TableOrder, give_order
from pgsluice.shared.broker.table_selection import load_selection
from pgsluice.shared.errors import UsageError
from pgsluice.shared.units.applied_places import AppliedPlaces
from pgsluice.shared.units.paused_tables import PAUSED_TABLES, PausedTable
from pgsluice.shared.wire.table import TablePattern


@dataclass(frozen=True, slots=True)
class TableList:
    """``orders`` are the ones that are not carried out yet; ``paused`` are tables whose changes wait in the stream."""

    tables: tuple[ListedTable, ...]
    orders: tuple[TableOrder, ...]
    paused: tuple[PausedTable, ...]


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """``tables`` are names or patterns; ``paused`` is whether their changes are to wait. ``reason`` is shown with them."""

    tables: tuple[str, ...]
    paused: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PausedList:
    """The matching tables."""

    tables: tuple[PausedTable, ...]


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """``tables`` are names or patterns. ``reason`` is for the audit."""

    verb: OrderVerb
    tables: tuple[str, ...]
    without_copy: bool = False
    reason: str = ""


async def list_tables(call: Call) -> Answer:
    """None of a group that was never started."""
    bucket = await found_bucket(call)
    if bucket is None:
        return Answer(TableList((), (), ()))
    ledger, membership = await Ledger(bucket).load(), await load_membership(bucket)
    tables = listed_tables(ledger, membership, await load_selection(bucket), await AppliedPlaces.read(bucket))
    paused = (await PAUSED_TABLES.load(bucket)).tables
    return Answer(TableList(tuple(tables), (await ORDERS.load(bucket)).open, paused))


async def pause_tables(call: Call) -> Answer:
    request: PauseRequest = call.body
    if not request.tables:
        raise Problem(ProblemKind.MALFORMED, "no tables are named", "name one at least", "tables")
    pause = TablePause(request.tables, request.paused, request.reason)
    meant = await write_pause(await bucket_of(call), pause, call.who.name)
    verb = "paused" if request.paused else "resumed"
    return Answer(PausedList(tuple(meant)), target=f"{call.path['group']} {verb} {' '.join(request.tables)}")


async def order_tables(call: Call) -> Answer:
    request: OrderRequest = call.body
    if not request.tables:
        raise Problem(ProblemKind.MALFORMED, "no tables are named", "name one at least", "tables")
    for text in request.tables:
        try:
            TablePattern.parse(text)
        except ValueError as error:
            raise UsageError(f"{text!r} {error}", "name tables like 'orders', 'sales.orders' or 'sales.*'") from None
    bucket = await bucket_of(call)
    await check_takes_orders(bucket)
    number = await give_order(bucket, request.verb, request.tables, without_copy=request.without_copy, request=call.request_id)
    given = (await ORDERS.load(bucket)).order(number)
    location = f"{PREFIX}/groups/{call.path['group']}/orders/{number}"
    return Answer(given, location=location, target=f"{call.path['group']} {request.verb.value} {' '.join(request.tables)}")


async def show_order(call: Call) -> Answer:
    text = call.path["number"]
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else -1
    found = (await ORDERS.load(await bucket_of(call))).order(number)
    if found is None:
        raise Problem(ProblemKind.NOT_FOUND, f"there is no request {text}, or not any more", "the list of tables shows open ones")
    return Answer(found)


def _rows_of_order(request: OrderRequest) -> Rows:
    """Returns where row values go: an added table's are sent, like the group's other rows."""
    return Rows.SENT if request.verb is OrderVerb.ADD else Rows.STAY


ENDPOINTS = (
    Endpoint(
        "GET",
        "/groups/{group}/tables",
        "Tables and open requests about them",
        Role.VIEWER,
        list_tables,
        answer=TableList,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/orders",
        "Add tables, remove, copy again, retry or forget them",
        Role.OPERATOR,
        order_tables,
        answer=TableOrder,
        status=202,
        body=OrderRequest,
        takes_key=True,
        rows=_rows_of_order,
    ),
    Endpoint(
        "PUT",
        "/groups/{group}/tables/desired",
        "Pause or resume tables: their changes wait in the stream, other tables continue",
        Role.OPERATOR,
        pause_tables,
        answer=PausedList,
        status=202,
        body=PauseRequest,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/groups/{group}/orders/{number}",
        "Show the result of a request",
        Role.VIEWER,
        show_order,
        answer=TableOrder,
        rows=Rows.STAY,
    ),
)
