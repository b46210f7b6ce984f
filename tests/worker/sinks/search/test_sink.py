"""What becomes of rows at a search server: ids, versions, values that were not sent, truncations, refusals."""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Value
from pgsluice.testing.batch import Batch, apply, apply_copied, write
from pgsluice.testing.changes_builder import (
    Change,
    copied,
    delete,
    insert,
    message,
    message_of,
    table,
    transaction,
    truncate,
    update,
)
from pgsluice.testing.rejecting_contract import without
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.search.bulk import BulkOutcome, ItemAnswer, Operation, send_bulk
from pgsluice.worker.sinks.search.bulk_delivery import Tally
from pgsluice.worker.sinks.search.search_receipt import check_indexes, receipt_of
from pgsluice.worker.sinks.search.server_connection import ServerConnection
from pgsluice.worker.sinks.search.sink import SearchSink
from pgsluice.worker.sinks.sink import Applied
from tests.search_servers import DOES_NOT_FIT
from tests.servers.http_proxy import Cut, Exchange, HttpProxy
from tests.servers.opensearch import SearchServer
from tests.worker.sinks.search.conftest import OpenSink
from tests.worker.sinks.search.sinks import search_settings

ORDERS = table("shop.orders", "id bigint", "note text", "body text")
FULL = table("shop.orders", "id bigint", "note text", "body text", identity=ReplicaIdentity.FULL)
LINES = table("shop.lines", "order_id text", "number integer", "note text", key=("order_id", "number"))

Documents = Callable[..., dict[str, tuple[int, dict[str, Any]]]]


@pytest.fixture
def documents(search_server: SearchServer, group: str) -> Documents:
    def of(name: str = "shop_orders") -> dict[str, tuple[int, dict[str, Any]]]:
        return search_server.documents(f"{group}_{name}")

    return of


def order(number: int, note: str, body: str | None) -> dict[str, Any]:
    return {"id": number, "note": note, "body": body}


def apply_until_done(sink: SearchSink, batch: Batch) -> Applied:
    while True:
        try:
            return apply(sink, batch)
        except WriteAgain:
            continue


def test_a_document_has_the_commit_lsn_of_its_last_change(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x")), message(2, update(ORDERS, b"1", b"b", b"y"))]])
    apply(sink, [[message(3, insert(ORDERS, b"2", b"c", None))]])
    assert documents() == {"1": (2000, order(1, "b", "y")), "2": (3000, order(2, "c", None))}


def test_a_copied_row_is_older_than_the_first_change_that_may_follow(sink: SearchSink, documents: Documents) -> None:
    apply_copied(sink, [[copied(1, ORDERS, (b"1", b"a", b"x"), (b"2", b"b", b"x"), snapshot="00000000000007D0-5f0c2e11")]])
    apply(sink, [[message(2, update(ORDERS, b"2", b"c", b"y"))]])
    assert documents() == {"1": (1999, order(1, "a", "x")), "2": (2000, order(2, "c", "y"))}


def test_partitions_of_a_batch_may_be_written_in_any_order(sink: SearchSink, documents: Documents) -> None:
    batch = [
        [message(1, insert(ORDERS, b"1", b"a", b"x"))],
        [message(2, update(ORDERS, b"1", b"b", b"y"))],
        [message(3, delete(ORDERS, b"2", None, None))],
    ]
    receipts = [write(sink, [part])[0] for part in reversed(batch)]
    sink.commit(reversed(receipts), "")
    write(sink, [[message(1, insert(ORDERS, b"2", b"late", b"x"))]])
    assert documents() == {"1": (2000, order(1, "b", "y"))}


def test_a_write_that_was_delayed_does_not_bring_back_what_was_deleted(
    sink: SearchSink, search_server: SearchServer, group: str, documents: Documents
) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))], [message(2, delete(ORDERS, b"1", None, None))]])
    connection = ServerConnection(search_settings(search_server.url))
    late = Operation(f"{group}_shop_orders-000001-write", b'"1"', 1000, 1, b'{"id":1,"note":"a","body":"x"}\n')
    assert [answer.outcome for answer in send_bulk(connection, [late])] == [BulkOutcome.STALE]
    connection.close()
    assert documents() == {}


def test_a_large_value_that_an_update_left_as_it_was_is_kept(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"large")), message(2, insert(ORDERS, b"2", b"a", b"huge"))]])
    batch = [
        [message(3, update(ORDERS, b"1", b"b", UNCHANGED))],
        [message(4, update(ORDERS, b"1", b"c", UNCHANGED)), message(5, update(ORDERS, b"2", b"b", UNCHANGED))],
    ]
    for _ in range(2):
        apply(sink, batch)
        write(sink, batch)
    assert documents() == {"1": (4000, order(1, "c", "large")), "2": (5000, order(2, "b", "huge"))}


def test_documents_that_cannot_be_read_in_time_are_read_in_halves(
    open_sink: OpenSink, documents: Documents, search_server: SearchServer
) -> None:
    """They are those with the large values. Asked for as before, they would take the server too long for ever."""
    asked: list[int] = []
    never = Event()

    def hold(exchange: Exchange) -> Cut | None:
        if "_mget" not in exchange.target:
            return None
        body = gzip.decompress(exchange.body) if exchange.body.startswith(b"\x1f\x8b") else exchange.body
        asked.append(body.count(b'"_id"'))
        if asked[-1] > 5:
            never.wait(60.0)
        return Cut() if asked[-1] > 5 else None

    with HttpProxy(search_server.port) as proxy:
        apply(open_sink(), [[message(1, *(insert(ORDERS, b"%d" % n, b"a", b"large") for n in range(16)))]])
        sink = open_sink(proxy.url, timeout_s=1.0)
        proxy.before = hold
        batch = [[message(2, *(update(ORDERS, b"%d" % n, b"b", UNCHANGED) for n in range(16)))]]
        applied = None
        while applied is None and len(asked) < 50:
            with contextlib.suppress(TransientError):
                applied = apply(sink, batch)
        never.set()
        assert documents() == {f"{n}": (2000, order(n, "b", "large")) for n in range(16)}
        assert asked[:3] == [16, 8, 4]


def test_a_value_that_was_not_sent_is_that_of_the_change_before_whatever_partition_that_is_in(
    sink: SearchSink, documents: Documents
) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"first"))]])
    batch = [
        [message(2, update(ORDERS, b"1", b"b", UNCHANGED))],
        [message(3, update(ORDERS, b"1", b"c", b"second"))],
        [message(4, update(ORDERS, b"1", b"d", UNCHANGED), update(ORDERS, b"1", UNCHANGED, UNCHANGED))],
    ]
    apply(sink, batch)
    assert documents() == {"1": (4000, order(1, "d", "second"))}


def test_values_that_the_old_row_holds_are_taken_from_there(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, update(FULL, b"1", b"b", UNCHANGED, old=(b"1", b"a", b"large")))]])
    assert documents() == {"1": (1000, order(1, "b", "large"))}


def test_an_insert_and_an_update_of_one_partition_need_nothing_of_the_server(sink: SearchSink, documents: Documents) -> None:
    numbers = table("shop.orders", "id bigint", "n numeric", "body text")
    digits = b"1234567890123456789012.50"
    apply(
        sink,
        [
            [
                message(1, insert(numbers, b"9007199254740993", digits, b"x")),
                message(2, update(numbers, b"9007199254740993", digits, UNCHANGED)),
            ]
        ],
    )
    assert documents() == {"9007199254740993": (2000, {"id": 9007199254740993, "n": digits.decode(), "body": "x"})}


def test_a_value_that_nobody_knows_makes_a_dead_letter_that_says_which(sink: SearchSink, documents: Documents) -> None:
    batch = [[message(1, insert(ORDERS, b"2", b"a", b"x"), update(ORDERS, b"1", b"b", UNCHANGED))]]
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, batch)
    (rejection,) = raised.value.rejections
    assert rejection.position == Position(LSN(1000), 2)
    assert "does not hold the value of 'body'" in rejection.reason
    apply(sink, [[without(each, {rejection.position}) for each in part] for part in batch])
    assert documents() == {"2": (1000, order(2, "a", "x"))}


def test_a_row_that_a_later_change_deletes_needs_no_value(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))]])
    batch = [[message(2, update(ORDERS, b"1", b"b", UNCHANGED))], [message(3, delete(ORDERS, b"1", None, None))]]
    for _ in range(2):
        apply(sink, batch)
        write(sink, batch)
    assert documents() == {}


def test_a_changed_key_takes_the_large_value_with_it(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"large"), insert(ORDERS, b"2", b"a", b"huge"))]])
    batch = [
        [message(2, update(ORDERS, b"3", b"b", UNCHANGED, old=(b"1", None, None)))],
        [
            message(
                3,
                update(ORDERS, b"4", b"c", UNCHANGED, old=(b"3", None, None)),
                update(ORDERS, b"5", b"d", b"new", old=(b"2", None, None)),
            )
        ],
    ]
    write(sink, batch)
    apply(sink, batch)
    apply(sink, batch)
    assert documents() == {"4": (3000, order(4, "c", "large")), "5": (3000, order(5, "d", "new"))}


def test_keys_of_a_transaction_may_move_along_a_chain(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, *(insert(ORDERS, b"%d" % n, b"%d" % n, b"large %d" % n) for n in (1, 2)))]])
    chain = [update(ORDERS, b"%d" % (n + 1), b"%d" % n, UNCHANGED, old=(b"%d" % n, None, None)) for n in (2, 1)]
    again = update(ORDERS, b"7", b"2", UNCHANGED, old=(b"3", None, None))
    apply(sink, [[message(2, *chain, again)]])
    assert documents() == {"7": (2000, order(7, "2", "large 2")), "2": (2000, order(2, "1", "large 1"))}


def test_rows_that_miss_different_values_of_one_document_get_both(sink: SearchSink, documents: Documents) -> None:
    """One moves away from its key, another one to it."""
    pairs = table("shop.pairs", "id bigint", "a text", "b text")
    apply(sink, [[message(1, insert(pairs, b"1", b"a1", b"b1"), insert(pairs, b"2", b"a2", b"b2"))]])
    away = update(pairs, b"9", UNCHANGED, b"new", old=(b"1", None, None))
    there = update(pairs, b"1", b"new", UNCHANGED, old=(b"2", None, None))
    apply(sink, [[message(2, away, there)]])
    expected = {"9": (2000, {"id": 9, "a": "a1", "b": "new"}), "1": (2000, {"id": 1, "a": "new", "b": "b2"})}
    assert documents("shop_pairs") == expected


def test_changes_that_hold_every_value_together_need_no_document(sink: SearchSink, documents: Documents) -> None:
    first, second = update(ORDERS, b"1", b"b", UNCHANGED), update(ORDERS, b"1", UNCHANGED, b"y")
    apply(sink, [[message(1, first), message(2, second)]])
    assert documents() == {"1": (2000, order(1, "b", "y"))}


def test_a_truncation_takes_what_was_before_it_and_nothing_else(
    open_sink: OpenSink, documents: Documents, search_server: SearchServer, group: str
) -> None:
    """Also when a worker is killed when the index is empty, or in the middle of the second pass."""
    sink = open_sink()
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"), insert(LINES, b"1", b"1", b"stays"))]])
    batch = [
        [message(2, insert(ORDERS, b"2", b"a", b"x"))],
        [message(3, insert(ORDERS, b"3", b"a", b"x"), truncate(ORDERS), insert(ORDERS, b"4", b"b", b"y"))],
        [message(4, insert(ORDERS, b"5", b"c", b"z"), insert(LINES, b"1", b"2", b"comes"))],
    ]
    with pytest.raises(WriteAgain):
        apply(sink, batch)
    write(sink, batch)
    assert apply_until_done(open_sink(), batch).sequence == 4
    assert documents() == {"4": (3000, order(4, "b", "y")), "5": (4000, order(5, "c", "z"))}
    assert len(documents("shop_lines")) == 2
    assert len([name for name in search_server.indices() if name.startswith(f"{group}_shop_orders-")]) == 1


def test_what_is_written_late_to_a_truncated_index_reaches_nobody(
    sink: SearchSink, documents: Documents, search_server: SearchServer, group: str
) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))]])
    apply_until_done(sink, [[message(2, truncate(ORDERS))]])
    connection = ServerConnection(search_settings(search_server.url))
    late = Operation(f"{group}_shop_orders-000001-write", b'"1"', 1000, 1, b'{"id":1,"note":"a","body":"x"}\n')
    assert [answer.outcome for answer in send_bulk(connection, [late])] == [BulkOutcome.WRONG]
    connection.close()
    assert documents() == {}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((b"a", b"1"), "a/1"),
        ((b"a/b%", b"1"), "a%2Fb%25/1"),
        ((b'"q"\\\n', b"1"), '"q"\\\n/1'),
        (("ü".encode() * 300, b"1"), "sha256:"),
        ((b"sha256:forged", b"1"), "sha256:"),
    ],
)
def test_the_id_of_a_composite_key(sink: SearchSink, documents: Documents, key: tuple[bytes, bytes], expected: str) -> None:
    apply(sink, [[message(1, insert(LINES, *key, b"n"))]])
    apply(sink, [[message(2, update(LINES, *key, UNCHANGED))]])
    ((found, (version, source)),) = documents("shop_lines").items()
    assert version == 2000
    assert source["order_id"] == key[0].decode()
    if expected == "sha256:":
        assert found.startswith(expected)
        assert source["_key"] == f"{key[0].decode()}/1"
    else:
        assert found == expected
        assert "_key" not in source
    apply(sink, [[message(3, delete(LINES, *key, None))]])
    assert documents("shop_lines") == {}


def test_rows_without_a_key_can_only_be_added(sink: SearchSink, documents: Documents) -> None:
    keyless = table("shop.log", "line text", key=(), identity=ReplicaIdentity.FULL)
    for _ in range(2):
        write(sink, [[message(1, insert(keyless, b"a"), insert(keyless, b"a"))]])
    assert documents("shop_log") == {"0/3E8:1": (1000, {"line": "a"}), "0/3E8:2": (1000, {"line": "a"})}
    with pytest.raises(TerminalError, match=r"shop\.log.*primary key"):
        write(sink, [[message(2, delete(keyless, b"a"))]])


@pytest.mark.parametrize("many", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_one_bad_document_among_many_is_one_dead_letter_without_its_value(
    open_sink: OpenSink, documents: Documents, tmp_path: Any, many: int
) -> None:
    mapping = tmp_path / "search.yaml"
    mapping.write_text("tables: {shop.orders: {columns: {note: {type: integer}}}}\n")
    sink = open_sink(mapping_file=str(mapping), batch_bytes=20_000)
    rows = [insert(ORDERS, b"%d" % n, b"secret" if n == 333 else b"1", b"x") for n in range(many)]
    batch = [[message_of(1, transaction(1000, *rows))]]
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, batch)
    (rejection,) = raised.value.rejections
    assert rejection.position == Position(LSN(1000), 334)
    assert re.fullmatch(rf"the search server refuses the document \({DOES_NOT_FIT}, field 'note'\)", rejection.reason)
    apply(sink, [[without(each, {rejection.position}) for each in part] for part in batch])
    assert len(documents()) == many - 1


@pytest.fixture
def integers(open_sink: OpenSink, tmp_path: Path) -> SearchSink:
    """Takes integers only as notes of orders."""
    mapping = tmp_path / "search.yaml"
    mapping.write_text("tables: {shop.orders: {columns: {note: {type: integer}}}}\n")
    return open_sink(mapping_file=str(mapping))


def orders(count: int, note: bytes = b"secret") -> list[Change]:
    return [insert(ORDERS, b"%d" % n, note, b"x") for n in range(count)]


def test_an_index_that_takes_nothing_is_waited_for(integers: SearchSink, documents: Documents) -> None:
    for _ in range(2):
        with pytest.raises(TransientError, match=rf"index '.*' refuses everything .*{DOES_NOT_FIT}") as raised:
            apply(integers, [[message(1, *orders(150))], [message(2, *orders(150), insert(LINES, b"1", b"1", b"x"))]])
        assert "secret" not in str(raised.value)
    apply(integers, [[message(1, *orders(150, b"7"))]])
    assert len(documents()) == 150


@pytest.mark.parametrize("count", [1, 5])
def test_the_documents_of_a_small_batch_are_set_aside_when_an_index_refuses_all_of_them(integers: SearchSink, count: int) -> None:
    with pytest.raises(RejectedChanges) as raised:
        apply(integers, [[message(1, *orders(count))]])
    assert len(raised.value.rejections) == count


@pytest.mark.parametrize("fitting_first", [False, True])
def test_an_index_that_takes_one_document_of_many_has_the_others_set_aside(integers: SearchSink, fitting_first: bool) -> None:
    """Whichever task sends it."""
    batch = [[message(1, *orders(150))], [message(2, insert(ORDERS, b"500", b"7", b"x"))]]
    with pytest.raises(RejectedChanges) as raised:
        apply(integers, batch[::-1] if fitting_first else batch)
    assert len(raised.value.rejections) == 150


def test_documents_that_are_refused_for_two_reasons_are_set_aside() -> None:
    told = [Tally(), Tally()]
    for number in range(150):
        refused = ItemAnswer(BulkOutcome.REFUSED, 400, "one" if number < 149 else "another")
        told[number % 2].note(Operation("orders-write", b"%d" % number, 1, number, b"{}"), refused)
    check_indexes([receipt_of(each, 0) for each in told])
    told[1].reasons["orders-write"].pop("another")
    with pytest.raises(TransientError, match="index 'orders' refuses everything that is sent to it: one"):
        check_indexes([receipt_of(each, 0) for each in told])


def ordinals_named(sink: SearchSink, batch: Batch, times: int) -> list[int]:
    """Those of the changes that are set aside, in so many refusals."""
    named: set[Position] = set()
    for _ in range(times):
        with pytest.raises(RejectedChanges) as raised:
            apply(sink, [[without(each, named) for each in part] for part in batch])
        named |= {rejection.position for rejection in raised.value.rejections}
    return sorted(position.ordinal for position in named)


@pytest.mark.parametrize("body", [b"x", UNCHANGED])
def test_the_first_of_several_changes_is_named_when_naming_the_last_did_not_help(integers: SearchSink, body: Value) -> None:
    """Also when the documents have to be completed."""
    apply(integers, [[message(1, insert(ORDERS, b"1", b"1", b"large"))]])
    batch: Batch = [[message(2, *(update(ORDERS, b"1", b"bad", body) for _ in range(50)))]]
    assert ordinals_named(integers, batch, 3) == [1, 49, 50]


def test_the_first_of_several_changes_of_a_document_that_is_not_there_is_named(integers: SearchSink) -> None:
    batch: Batch = [[message(1, *(update(ORDERS, b"1", b"1", UNCHANGED) for _ in range(50)))]]
    assert ordinals_named(integers, batch, 3) == [1, 49, 50]


def test_a_key_is_not_left_by_a_row_that_is_refused_under_its_new_one(integers: SearchSink, documents: Documents) -> None:
    """What is there has the value that was not sent: the letter needs it when it is replayed."""
    apply(integers, [[message(1, insert(ORDERS, b"1", b"1", b"large"))]])
    batch: Batch = [[message(2, update(ORDERS, b"2", b"bad", UNCHANGED, old=(b"1", None, None)))]]
    assert ordinals_named(integers, batch, 1) == [1]
    assert documents() == {"1": (1000, order(1, "1", "large"))}


def test_attempts_that_fail_for_a_passing_cause_do_not_change_which_change_is_named(integers: SearchSink) -> None:
    for _ in range(10):
        integers.writer()
    batch: Batch = [[message(1, update(ORDERS, b"1", b"1", b"x"), update(ORDERS, b"1", b"bad", b"x"))]]
    assert ordinals_named(integers, batch, 1) == [2]


def test_a_new_column_is_a_new_field_before_the_first_row_that_needs_it(sink: SearchSink, documents: Documents) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))]])
    wider = table("shop.orders", "id bigint", "note text", "body text", "paid boolean")
    apply(sink, [[message(2, insert(wider, b"2", b"b", b"y", b"t"))]])
    assert documents()["2"] == (2000, order(2, "b", "y") | {"paid": True})


def test_a_column_of_another_type_asks_for_a_new_index(sink: SearchSink) -> None:
    apply(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))]])
    changed = table("shop.orders", "id bigint", "note integer", "body text")
    with pytest.raises(TerminalError, match=r"field 'note' .* of type text, and would be long now: .*reindex shop\.orders"):
        write(sink, [[message(2, insert(changed, b"2", b"5", b"y"))]])


def test_an_index_that_is_not_allowed_is_refused(open_sink: OpenSink) -> None:
    sink = open_sink(allow_indexes=("invoices_*",))
    with pytest.raises(TerminalError, match="search-allow-indexes does not allow"):
        write(sink, [[message(1, insert(ORDERS, b"1", b"a", b"x"))]])


def test_a_sink_counts_what_became_of_documents(sink: SearchSink) -> None:
    measured = table("shop.measured", "id bigint", "value float8")
    rows = [insert(measured, b"1", b"NaN"), insert(measured, b"2", b"1.5"), insert(measured, b"3", None)]
    apply(sink, [[message(1, *rows)], [message(2, delete(measured, b"1", None))]])
    apply(sink, [[message(3, insert(ORDERS, b"1", b"a", b"x"))]])
    apply(sink, [[message(4, update(ORDERS, b"1", b"b", UNCHANGED))]])
    samples = {(sample.metric.name, *sample.labels): sample.value for sample in sink.collect()}
    assert samples["pgsluice_search_items_total", "indexed"] == 5
    assert samples["pgsluice_search_items_total", "deleted"] == 1
    assert samples["pgsluice_search_nulled_total",] == 1
    assert samples["pgsluice_search_mget_total",] == 1
