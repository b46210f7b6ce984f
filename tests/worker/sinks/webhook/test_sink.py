"""The webhook sink beyond the contract: order, requests that a successor repeats, changes that the receiver refuses."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.rows.changes import MessageChanges, TableChanges
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.table import Value
from pgsluice.testing.batch import STREAM_CREATED, Batch, apply, apply_copied, apply_in, write
from pgsluice.testing.changes_builder import (
    Change,
    TruncateChange,
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
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.sink import Lane, Receipt
from pgsluice.worker.sinks.webhook.deliveries import FEW_REFUSALS
from tests.servers.http_server import Answer, HttpServer, Received
from tests.worker.sinks.webhook.sinks import NewSink

pytestmark = pytest.mark.timeout(60)

ROWS = table("public.rows", "id bigint", "note text")
OTHERS = table("public.others", "id bigint", "note text")


def messages(first: int, last: int, keys: int = 7) -> list[MessageChanges]:
    """One transaction with one update each; the keys take turns."""
    return [message(n, update(ROWS, b"%d" % (n % keys), b"%d" % n)) for n in range(first, last + 1)]


def notes_by_key(objects: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    notes: dict[int, list[int]] = defaultdict(list)
    for each in objects:
        notes[each["after"]["id"]].append(int(each["after"]["note"]))
    return notes


@pytest.mark.parametrize("form", ["array", "lines", "single"])
def test_the_changes_of_a_key_arrive_in_order_whatever_takes_long(form: str, receiver: HttpServer, open_sink: NewSink) -> None:
    choose = random.Random(5)

    def answer(request: Received) -> Answer:
        receiver.stopped.wait(choose.uniform(0, 0.01))
        return Answer(503, {"Retry-After": "0"}) if choose.random() < 0.01 else Answer()

    receiver.answer = answer
    sink = open_sink(format=form, batch_size=5, connections=8)
    apply(sink, [messages(1, 60, keys=20), messages(61, 100, keys=20)])
    apply(sink, [messages(101, 120, keys=20)])
    assert notes_by_key(receiver.objects()) == {key: [n for n in range(1, 121) if n % 20 == key] for key in range(20)}
    assert receiver.most_under_way > 1


def test_a_change_of_a_key_and_a_truncate_come_between_what_is_before_and_behind_them(
    receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.delay_s = 0.01
    before = [insert(ROWS, b"%d" % n, b"before") for n in range(10)]
    behind = [insert(OTHERS, b"%d" % n, b"behind") for n in range(10)]
    moved = update(ROWS, b"100", b"moved", old=(b"0", None))
    apply(open_sink(connections=8), [[message(1, *before, moved, *behind, truncate(ROWS, OTHERS), *behind)]])
    operations = [(each["operation"], each["table"]) for each in receiver.objects()]
    assert operations == [
        *[("INSERT", "rows")] * 10,
        ("UPDATE", "rows"),
        *[("INSERT", "others")] * 10,
        ("TRUNCATE", "rows"),
        ("TRUNCATE", "others"),
        *[("INSERT", "others")] * 10,
    ]
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == len(receiver.requests)


@pytest.mark.parametrize("connections", [1, 4])
def test_transactions_have_borders_when_asked_for(connections: int, receiver: HttpServer, open_sink: NewSink) -> None:
    sink = open_sink(transactions=True, connections=connections)
    first, second = insert(ROWS, b"1", b"n"), update(ROWS, b"1", b"m")
    apply(sink, [[message_of(1, transaction(10, first, second), transaction(20, second), transaction(30))]])
    operations = [each["operation"] for each in receiver.objects()]
    assert operations == ["BEGIN", "INSERT", "UPDATE", "COMMIT", "BEGIN", "UPDATE", "COMMIT", "BEGIN", "COMMIT"]
    assert len(receiver.requests) == (1 if connections == 1 else 8)


def test_a_single_connection_keeps_commit_order(receiver: HttpServer, open_sink: NewSink) -> None:
    apply(open_sink(connections=1, batch_size=3), [messages(1, 40)])
    assert [int(each["after"]["note"]) for each in receiver.objects()] == list(range(1, 41))
    assert receiver.most_under_way == 1


def test_requests_are_bounded_by_changes_and_by_bytes(receiver: HttpServer, open_sink: NewSink) -> None:
    note = b"x" * 1000
    apply(open_sink(connections=1, batch_size=4, batch_bytes=3_000), [[message(1, *(insert(ROWS, b"1", note),) * 5)]])
    assert [len(request.objects) for request in receiver.requests] == [2, 2, 1]
    apply(open_sink(connections=1, batch_size=4, batch_bytes=10), [[message(2, *(insert(ROWS, b"1", note),) * 2)]])
    assert [len(request.objects) for request in receiver.requests[3:]] == [1, 1]


def keys_by_change(requests: Sequence[Received]) -> dict[str, set[str]]:
    """The idempotency keys under which each position came."""
    keys: dict[str, set[str]] = defaultdict(set)
    for request in requests:
        for each in request.objects:
            keys[each["position"]].add(request.headers["idempotency-key"])
    return keys


def broken_off_behind(receipts: Sequence[Receipt], receiver: HttpServer, requests: int) -> Iterator[Receipt]:
    """The receipts, then the end of the process as soon as so many requests are answered."""
    yield from receipts
    while len(receiver.accepted) < requests:
        receiver.stopped.wait(0.01)
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["array", "single"])
@pytest.mark.parametrize("crash_after", [1, 5])
def test_a_successor_sends_the_same_requests_although_it_finds_more_messages(
    form: str, crash_after: int, receiver: HttpServer, open_sink: NewSink
) -> None:
    """The first process dies while it sends, the second when everything is sent but the position has not moved."""
    first = open_sink(format=form, batch_size=4, connections=3)
    with pytest.raises(KeyboardInterrupt):
        first.commit(broken_off_behind(write(first, [messages(1, 30)]), receiver, crash_after), STREAM_CREATED)
    first.close()
    second = open_sink(format=form, batch_size=4, connections=3)
    second._positions.store = fail  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        apply(second, [messages(1, 11), messages(12, 35)])
    second.close()
    third = open_sink(format=form, batch_size=4, connections=3)
    apply(third, [messages(1, 50), messages(51, 60)])
    keys = keys_by_change(receiver.requests)
    assert len(keys) == 60
    assert {position: found for position, found in keys.items() if len(found) > 1} == {}


def fail(applied: object) -> None:
    raise TransientError("the broker is away", "wait")


def test_one_change_has_one_key_and_another_change_another(receiver: HttpServer, open_sink: NewSink) -> None:
    sink = open_sink(format="single", connections=1)
    apply_copied(sink, [[copied(1, ROWS, (b"1", b"n"), (b"1", b"n")), copied(2, ROWS, (b"1", b"n"))]])
    apply(sink, [[message(1, insert(ROWS, b"1", b"n"), insert(ROWS, b"1", b"n"), truncate(ROWS, OTHERS))]])
    keys = [request.headers["idempotency-key"] for request in receiver.requests]
    assert len(set(keys)) == len(keys) == 7
    assert all("." not in key and key.isascii() for key in keys)
    assert "/sink/copy:1:1/" in keys[0]
    assert "/sink/0/3E8:1/" in keys[3]


def refuse(*ids: int, status: int = 422) -> Callable[[Received], Answer]:
    def answer(request: Received) -> Answer:
        return Answer(status) if any((each["key"] or {}).get("id") in ids for each in request.objects) else Answer()

    return answer


def id_of(value: Value) -> int:
    assert isinstance(value, bytes)
    return int(value)


def without(batch: Batch, *ids: int) -> Batch:
    """As the worker writes it again: without the rows of these keys."""
    kept = []
    for messages_of_partition in batch:
        for each in messages_of_partition:
            for part in each.parts:
                assert isinstance(part, TableChanges)
                part_rows = [row for row, value in enumerate(part.new[0]) if id_of(value) not in ids]
                each = MessageChanges(
                    each.first_sequence,
                    each.sequence,
                    each.transactions,
                    [part.select(part_rows)],
                    each.change_count,
                )
            kept.append(each)
    return [kept]


@pytest.mark.parametrize("form", ["array", "single"])
def test_what_the_receiver_refuses_is_named_and_the_rest_is_delivered_once(
    form: str, receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answer = refuse(3, 11)
    sink = open_sink(format=form, connections=4, batch_size=50)
    batch = [messages(1, 64, keys=16)]
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, batch)
    assert [(int(each.position.commit_lsn), each.position.ordinal) for each in raised.value.rejections] == [(3000, 1), (11000, 1)]
    assert {each.reason for each in raised.value.rejections} == {"the webhook's receiver answered with status 422"}
    assert apply(sink, without(batch, 3, 11)).sequence == 64
    notes = notes_by_key(receiver.objects())
    assert notes == {key: [n for n in range(1, 65) if n % 16 == key] for key in range(16) if key not in (3, 11)}


def test_a_change_that_was_held_back_behind_a_refused_one_is_sent_when_it_comes_again(
    receiver: HttpServer, open_sink: NewSink
) -> None:
    """The refused change is taken out, and nothing else."""
    receiver.answer = lambda request: Answer(422) if b'"note":"1"' in request.body else Answer()
    sink = open_sink(format="single", connections=1)
    changes = messages(1, 5, keys=1)
    with pytest.raises(RejectedChanges):
        apply(sink, [changes])
    assert receiver.accepted == []
    empty = MessageChanges(1, 1, changes[0].transactions, [], 1)
    apply(sink, [[empty, *changes[1:]]])
    assert notes_by_key(receiver.objects()) == {0: [2, 3, 4, 5]}


def test_what_was_delivered_is_passed_over_although_earlier_changes_are_sent_after_it(
    receiver: HttpServer, open_sink: NewSink
) -> None:
    """Rows of a table without a key are held back together, because nobody can tell them apart."""
    receiver.answer = lambda request: Answer(422) if b'"note":"bad"' in request.body else Answer()
    sink = open_sink(format="single", connections=1)
    log = table("public.log", "note text", key=())
    held_back = [message(n, insert(log, b"%d" % n)) for n in range(2, 12)]
    behind = [message(n, insert(ROWS, b"%d" % n, b"n")) for n in range(12, 15)]
    with pytest.raises(RejectedChanges):
        apply(sink, [[message(1, insert(log, b"bad")), *held_back, *behind]])
    assert [each["table"] for each in receiver.objects()] == ["rows"] * 3
    empty = MessageChanges(1, 1, message(1, insert(log, b"bad")).transactions, [], 1)
    apply(sink, [[empty, *held_back, *behind]])
    assert [each["table"] for each in receiver.objects()] == ["rows"] * 3 + ["log"] * 10


def test_a_document_that_not_every_reader_takes_is_delivered_and_refused_like_another(
    receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answer = lambda request: Answer(422) if b'{"id":2,' in request.body else Answer()
    sink = open_sink(format="single", connections=2)
    papers = table("public.papers", "id bigint", "paper json")
    half, beyond, deep = rb'{"title": "\ud83d"}', b'{"size": 1e400}', b"[" * 2000 + b"]" * 2000
    rows = [insert(papers, b"%d" % n, paper) for n, paper in enumerate((half, half, beyond, deep), 1)]
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, [[message(1, *rows)]])
    assert [each.position.ordinal for each in raised.value.rejections] == [2]
    bodies = sorted(request.body for request in receiver.accepted)
    assert [paper in body for body, paper in zip(bodies, (half, beyond, deep), strict=True)] == [True] * 3


def test_tables_that_catch_up_are_sent_although_later_messages_were(receiver: HttpServer, open_sink: NewSink) -> None:
    sink, behind = open_sink(connections=1), frozenset({OTHERS.oid})
    apply_in(sink, [[message(1, insert(ROWS, b"1", b"n"))]], Lane.CHANGES, frozenset())
    apply_in(sink, [[message(2, insert(ROWS, b"2", b"n")), message(3, insert(ROWS, b"3", b"n"))]], Lane.CHANGES, behind)
    apply_in(sink, [[message(2, insert(OTHERS, b"2", b"n"))]], Lane.CATCH_UP, behind)
    assert [(each["table"], each["after"]["id"]) for each in receiver.objects()] == [
        ("rows", 1),
        ("rows", 2),
        ("rows", 3),
        ("others", 2),
    ]


@pytest.mark.parametrize(("status", "most"), [(401, FEW_REFUSALS), (404, FEW_REFUSALS), (422, MOST_REFUSALS)])
@pytest.mark.parametrize("form", ["array", "single"])
def test_a_receiver_that_refuses_everything_is_waited_for(
    form: str, status: int, most: int, receiver: HttpServer, open_sink: NewSink
) -> None:
    """As while another version of it is installed. It is not asked about everything."""
    sink = open_sink(format=form, connections=2)
    receiver.answer = lambda request: Answer(status)
    rows = [message(1, *(insert(ROWS, b"%d" % n, b"%d" % n) for n in range(500)))]
    for _ in range(2):
        with pytest.raises(TransientError, match=f"refuses everything that is sent to it: status {status}"):
            apply(sink, [rows])
    assert len(receiver.requests) <= 2 * (4 * most + 20)
    receiver.answer = lambda request: Answer()
    assert apply(sink, [rows]).sequence == 1
    assert sorted(each["after"]["id"] for each in receiver.objects()) == list(range(500))


def test_a_receiver_that_goes_away_within_a_batch_is_waited_for(receiver: HttpServer, open_sink: NewSink) -> None:
    sink = open_sink(format="single", connections=1)
    rows = [message(1, *(insert(ROWS, b"%d" % n, b"%d" % n) for n in range(100)))]
    receiver.answer = lambda request: Answer(404 if len(receiver.requests) > 40 else 200)
    with pytest.raises(TransientError, match="refuses everything that is sent to it: status 404"):
        apply(sink, [rows])
    receiver.answer = lambda request: Answer()
    apply(sink, [rows])
    assert [each["after"]["id"] for each in receiver.objects()] == list(range(100))


def test_many_rows_that_are_refused_behind_others_of_their_batch_are_dead_letters(
    receiver: HttpServer, open_sink: NewSink
) -> None:
    """A status that speaks of the rows, of a receiver that takes others."""
    receiver.answer = lambda request: Answer(422 if len(receiver.requests) > 40 else 200)
    rows = [message(1, *(insert(ROWS, b"%d" % n, b"n") for n in range(300)))]
    with pytest.raises(RejectedChanges) as raised:
        apply(open_sink(format="single", connections=1), [rows])
    assert len(raised.value.rejections) == MOST_REFUSALS


@pytest.mark.parametrize("status", [404, 422])
def test_rows_that_are_refused_among_others_are_dead_letters_whatever_the_status(
    status: int, receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answer = lambda request: Answer(status if b'"note":"7' in request.body else 200)
    rows = [message(1, *(insert(ROWS, b"%d" % n, b"%d" % n) for n in range(90)))]
    with pytest.raises(RejectedChanges) as raised:
        apply(open_sink(format="single", connections=1), [rows])
    assert len(raised.value.rejections) == 11


def test_a_single_change_that_is_refused_is_a_dead_letter(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(404)
    with pytest.raises(RejectedChanges):
        apply(open_sink(), [[message(1, insert(ROWS, b"1", b"n"))]])


@pytest.mark.parametrize("connections", [1, 4])
def test_a_refused_truncate_is_named_before_anything_behind_it_is_sent(
    connections: int, receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answer = lambda request: Answer(400) if b"TRUNCATE" in request.body else Answer()
    changes: list[Change | TruncateChange] = [insert(ROWS, b"1", b"n"), truncate(ROWS), insert(ROWS, b"2", b"n")]
    with pytest.raises(RejectedChanges) as raised:
        apply(open_sink(connections=connections), [[message(1, *changes)]])
    assert [each.position.ordinal for each in raised.value.rejections] == [2]
    assert [each["after"]["id"] for each in receiver.objects()] == [1]


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("form", ["array", "single"])
def test_a_row_that_was_refused_does_not_go_on_under_another_key(
    form: str, connections: int, receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answer = refuse(1)
    sink = open_sink(format=form, connections=connections)
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, [[message(1, insert(ROWS, b"1", b"n"), update(ROWS, b"2", b"n", old=(b"1", None)))]])
    assert [each.position.ordinal for each in raised.value.rejections] == [1]
    assert receiver.accepted == []


def test_a_refused_copied_row_is_named_by_its_place_in_the_copy(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answer = refuse(2)
    sink = open_sink()
    rows = copied(1, ROWS, (b"1", b"n"), (b"2", b"n"), (b"3", b"n"))
    with pytest.raises(RejectedChanges) as raised:
        apply_copied(sink, [[rows, copied(2, ROWS, (b"4", b"n"))]])
    assert [each.position for each in raised.value.rejections] == [copied_position(1, 1)]
    left = replace(copied(1, ROWS, (b"1", b"n"), (b"3", b"n")), numbers=(0, 2))
    apply_copied(sink, [[left, copied(2, ROWS, (b"4", b"n"))]])
    assert sorted(each["after"]["id"] for each in receiver.objects()) == [1, 3, 4]


def test_a_refused_border_of_a_transaction_needs_a_person(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(422) if b"BEGIN" in request.body else Answer()
    with pytest.raises(TerminalError, match="answered BEGIN with status 422"):
        apply(open_sink(transactions=True), [messages(1, 1)])


def test_rows_and_changes_that_go_to_two_tables_are_delivered_to_both_once(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(422) if b'"note":"bad"' in request.body else Answer()
    sink = open_sink(connections=2)
    both = [replace(copied(1, ROWS, (b"1", b"n")), more_follow=True), copied(1, OTHERS, (b"1", b"n"), (b"2", b"bad"))]
    with pytest.raises(RejectedChanges):
        apply_copied(sink, [both])
    apply_copied(sink, [[both[0], copied(1, OTHERS, (b"1", b"n"))]])
    change = message(1, insert(ROWS, b"5", b"n"), truncate(ROWS))
    part, truncation = change.parts
    assert isinstance(part, TableChanges)
    change.parts = [part, replace(part, table=OTHERS), truncation]
    apply(sink, [[change]])
    assert sorted((each["table"], each["operation"], (each["key"] or {}).get("id", 0)) for each in receiver.objects()) == [
        ("others", "INSERT", 5),
        ("others", "READ", 1),
        ("rows", "INSERT", 5),
        ("rows", "READ", 1),
        ("rows", "TRUNCATE", 0),
    ]


def test_a_request_that_is_too_large_is_halved(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(413) if len(request.objects) > 10 else Answer()
    changes = chain.from_iterable((insert(ROWS, b"%d" % n, b"n"), delete(ROWS, b"%d" % n, None)) for n in range(50))
    apply(open_sink(connections=1), [[message(1, *changes)]])
    assert len(receiver.objects()) == 100


def test_pg_flos_shape_is_delivered_and_refused_like_ours(receiver: HttpServer, open_sink: NewSink) -> None:
    """Each change in a request of its own is what pg_flo sends."""
    receiver.answer = lambda request: Answer(422) if b'"NewTuple":{"id":2,' in request.body else Answer()
    sink = open_sink(format="single", shape="pg-flo", connections=2)
    copy = copied(1, ROWS, (b"1", b"n"), (b"2", b"n"))
    with pytest.raises(RejectedChanges) as raised:
        apply_copied(sink, [[copy]])
    assert [each.position for each in raised.value.rejections] == [copied_position(1, 1)]
    apply_copied(sink, [[replace(copied(1, ROWS, (b"1", b"n")), numbers=(0,))]])
    changes: list[Change | TruncateChange] = [
        insert(ROWS, b"2", b"bad"),
        insert(ROWS, b"3", b"n"),
        update(ROWS, b"2", b"behind the refused one"),
        truncate(ROWS),
    ]
    with pytest.raises(RejectedChanges) as raised:
        apply(sink, [[message(1, *changes)]])
    assert [str(each.position) for each in raised.value.rejections] == ["0/3E8:1"]
    taken_out = message(1, *changes)
    part, truncation = taken_out.parts
    assert isinstance(part, TableChanges)
    taken_out.parts = [part.select([1]), truncation]
    apply(sink, [[taken_out]])
    assert [(each["Type"], each.get("NewTuple", {}).get("id")) for each in receiver.objects()] == [
        ("INSERT", 1),
        ("INSERT", 3),
        ("TRUNCATE", None),
    ]
