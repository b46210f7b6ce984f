"""What ``pgsluice tables list`` says of tables and open orders."""

from __future__ import annotations

from pgsluice.console.tables import format_tables, listed_tables
from pgsluice.replicator.membership.membership import Member, Membership
from pgsluice.shared.broker.ledger import LedgerContent, Phase, Retry, TableRecord
from pgsluice.shared.broker.table_orders import OrderVerb, TableOrder
from pgsluice.shared.broker.table_selection import TableSelection
from pgsluice.shared.units.applied_places import AppliedPlaces
from pgsluice.shared.wire.position import LSN

NOBODY = AppliedPlaces((), LSN(0), None)
THEN = "2026-01-31T04:37:04+00:00"


def record(oid: int, table: str, phase: Phase, **more: object) -> TableRecord:
    return TableRecord(oid, "public", table, phase, THEN, **more)  # type: ignore[arg-type]


def membership(*members: Member) -> Membership:
    return Membership("p", 1, "1", ("insert",), True, members, "0/1", THEN)


def member(oid: int, table: str, chosen_as: tuple[str, ...] = ()) -> Member:
    return Member(oid, "public", table, "r", "0/1", "1", "", "", chosen_as=chosen_as)


def test_each_table_says_why_the_group_has_it() -> None:
    ledger = LedgerContent(
        None,
        {
            1: record(1, "configured", Phase.FINISHED_COPY, rows=1234),
            2: record(2, "added", Phase.DATA_SYNC),
            3: record(
                3, "removed", Phase.LEFT, error="it is no longer among the tables", remedy="when it returns it is resynced"
            ),
            4: record(4, "orders", Phase.FINISHED_COPY),
        },
    )
    known = membership(
        member(1, "configured"), member(2, "added"), member(4, "archived", ("public", "orders")), member(5, "only")
    )
    configured = ("public.configured", "public.removed", "public.orders", "public.only")
    listed = listed_tables(ledger, known, TableSelection(configured, ("public.added",), ("public.removed",)), NOBODY)
    assert {table.table: (table.phase, table.origin) for table in listed} == {
        "public.added": ("data_sync", "added"),
        "public.archived": ("finished_copy", "renamed, was public.orders"),
        "public.configured": ("finished_copy", "configuration"),
        "public.only": ("streamed", "configuration"),
        "public.removed": ("left", "removed"),
    }


def test_a_table_in_trouble_says_what_is_wrong_what_to_do_and_when_it_is_tried_again() -> None:
    timed = record(1, "a", Phase.ERRORED, error="it was busy", remedy="wait", retry=Retry.TIMED, retry_at=THEN)
    manual = record(2, "b", Phase.ERRORED, error="it may not be read", remedy="GRANT", retry=Retry.MANUAL)
    order = TableOrder(3, OrderVerb.ADD, ("x", "y"), THEN)
    forget = TableOrder(4, OrderVerb.FORGET, ("z",), THEN, taken_at=THEN, waits_for=("w",))
    listed = listed_tables(LedgerContent(None, {1: timed, 2: manual}), None, TableSelection(), NOBODY)
    lines = format_tables(listed, [order, forget])
    assert [line for line in lines if line.startswith(("    ", "order"))] == [
        "    it was busy: wait; tried again at 2026-01-31T04:37:04",
        "    it may not be read: GRANT; tried again when asked for",
        "order 3: add x y waits for the replicator, since 2026-01-31T04:37:04",
        "order 4: forget z waits until these workers have applied its changes: w, since 2026-01-31T04:37:04",
    ]
