"""The subscriptions sink: everybody gets what they asked for, in order, and nobody waits for another."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.batch import apply, write
from pgsluice.testing.changes_builder import delete, insert, message, table, truncate, update
from pgsluice.worker.sinks.sink import PartitionWriter, Receipt
from pgsluice.worker.sinks.subscriptions import catching_up, subscription_book
from pgsluice.worker.sinks.subscriptions.catching_up import Timer
from pgsluice.worker.sinks.subscriptions.dispatch import Dispatch
from pgsluice.worker.sinks.subscriptions.subscription_secret import master_keys, subscription_signer
from tests.servers.http_server import Answer, Failure, HttpServer, Received
from tests.waiting import wait_until
from tests.worker.sinks.subscriptions.subscribed import ROWS, SECRET, WORKER, Stage, first_of_each, ids

pytestmark = pytest.mark.timeout(120)

OTHERS = table("sales.others", "id bigint", "note text")


def gets(receiver: HttpServer, path: str, last: int, first: int = 1) -> None:
    """Waits until the receiver at ``path`` has all rows from ``first`` to ``last``, and none before another that precedes it."""
    wanted = list(range(first, last + 1))
    wait_until(lambda: len(set(ids(receiver, path))) >= len(wanted), what=f"{path} gets {first} to {last}", deadline_s=60)
    assert first_of_each(ids(receiver, path)) == wanted


def held_until(released: threading.Event, path: str) -> Callable[[Received], Answer]:
    """The receiver at ``path`` answers when it is released, all others at once."""

    def answer(request: Received) -> Answer:
        if request.target == f"/{path}":
            released.wait(60)
        return Answer()

    return answer


def test_each_receiver_gets_the_events_that_it_subscribed_to_in_order(stage: Stage, receiver: HttpServer) -> None:
    stage.subscribe(receiver, "all")
    stage.subscribe(receiver, "rows", schema="public", table="rows")
    stage.subscribe(receiver, "sales", schema="sales")
    stage.subscribe(receiver, "deletes", events=("delete",))
    stage.subscribe(receiver, "nothing", schema="public", table="others")
    sink = stage.start(batch_size=3)
    changes = [
        message(1, insert(ROWS, b"1", b"n"), insert(OTHERS, b"2", b"n"), update(ROWS, b"1", b"m")),
        message(2, delete(ROWS, b"1", None), truncate(ROWS, OTHERS)),
    ]
    apply(sink, [changes])
    everything = ["INSERT rows", "INSERT others", "UPDATE rows", "DELETE rows", "TRUNCATE rows", "TRUNCATE others"]
    found: dict[str, list[str]] = {path: [] for path in ("all", "rows", "sales", "deletes", "nothing")}
    for request in receiver.accepted:
        found[request.target[1:]] += [f"{each['operation']} {each['table']}" for each in request.objects]
    assert found == {
        "all": everything,
        "rows": [each for each in everything if each.endswith("rows")],
        "sales": ["INSERT others", "TRUNCATE others"],
        "deletes": ["DELETE rows"],
        "nothing": [],
    }
    assert stage.sinks[0].held() is None


def test_a_document_that_not_every_reader_takes_holds_up_nobody(stage: Stage, receiver: HttpServer) -> None:
    stage.subscribe(receiver, "papers")
    papers = table("public.papers", "id bigint", "paper json")
    half, beyond, deep = rb'{"title": "\ud83d"}', b'{"size": 1e400}', b"[" * 2000 + b"]" * 2000
    apply(stage.start(), [[message(1, *(insert(papers, b"%d" % n, paper) for n, paper in enumerate((half, beyond, deep))))]])
    (request,) = receiver.accepted
    assert all(paper in request.body for paper in (half, beyond, deep))


def test_a_slow_receiver_holds_up_nobody_and_gets_everything_in_order(stage: Stage, receiver: HttpServer) -> None:
    released = threading.Event()
    receiver.answer = held_until(released, "slow")
    stage.subscribe(receiver, "slow")
    stage.subscribe(receiver, "fast")
    sink = stage.start(timeout_s=100.0)  # longer than the receiver is held: only patience lets the others go on
    for _ in range(3):
        stage.apply(sink, 20)
    assert ids(receiver, "fast") == list(range(1, 61))
    assert ids(receiver, "slow") == []
    assert sink.held() == 0
    released.set()
    gets(receiver, "slow", 60)
    stage.apply(sink, 5)
    gets(receiver, "slow", 65)
    assert len(ids(receiver, "fast")) == 65


def test_a_receiver_that_fails_gets_the_same_request_again_and_then_all_the_rest(stage: Stage, receiver: HttpServer) -> None:
    receiver.answers = [Answer(503), Failure.CLOSE, Answer(404), Answer(302)]
    identifier = stage.subscribe(receiver, "one")
    sink = stage.start()
    stage.apply(sink, 5)
    stage.apply(sink, 5)
    gets(receiver, "one", 10)
    first = receiver.requests[1]
    assert first.headers["pgsluice-subscription"] == identifier
    assert {request.headers["idempotency-key"] for request in receiver.requests[1:4]} == {first.headers["idempotency-key"]}
    request = receiver.accepted[-1]
    key, timestamp = request.headers["idempotency-key"], int(request.headers["webhook-timestamp"])
    signer = subscription_signer(master_keys(SECRET), stage.group, identifier)
    signed = signer.headers(key, timestamp, request.body)
    assert signed["webhook-signature"] == request.headers["webhook-signature"]


@pytest.mark.parametrize("header", ["Sat, 31 Jan 2026 9999999999:01:30 GMT", "\xff", "9" * 70_000])
def test_an_answer_that_nobody_understands_is_a_failure_like_any_other(stage: Stage, receiver: HttpServer, header: str) -> None:
    """It would hold the stream for good otherwise."""
    receiver.answers = [Answer(503, {"Retry-After": header}), Failure.CLOSE]
    stage.subscribe(receiver, "one")
    sink = stage.start()
    stage.apply(sink, 5)
    gets(receiver, "one", 5)


@pytest.mark.parametrize(
    ("host", "reason"), [("a..example.com", "cannot be looked up"), ("ä..example.com", "an unexpected error ended a request")]
)
def test_a_host_that_is_no_name_is_a_failure_like_any_other(stage: Stage, receiver: HttpServer, host: str, reason: str) -> None:
    stage.subscribe(receiver, "one")
    identifier = stage.subscribe(receiver, "other")
    stage.write(identifier, replace(stage.read(identifier), url=f"http://{host}/other"))
    sink = stage.start(pause_after_s=0.2)
    stage.apply(sink, 5)
    gets(receiver, "one", 5)
    wait_until(lambda: sink.held() is None, what="it is paused")
    wait_until(lambda: reason in stage.told_of().get(identifier, ""), what="people are told why")


def test_a_receiver_has_another_turn_whatever_ended_the_one_before(
    stage: Stage, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "_HARD_READING_PAUSE_S", 0.1)
    stage.subscribe(receiver, "one")
    receiver.answers = [Answer(503)]
    sink = stage.start()
    failing = iter([MemoryError, KeyError])

    def reread(writer: PartitionWriter, first: int, last: int) -> Iterator[tuple[bytes, int]]:
        for error in failing:
            raise error
        return stage.reread(writer, first, last)

    sink.reread_by(reread)
    stage.apply(sink, 5)
    gets(receiver, "one", 5)


def test_a_receiver_has_another_turn_after_a_defect_in_what_was_read(
    stage: Stage, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "_HARD_READING_PAUSE_S", 0.1)
    fail_once(monkeypatch, catching_up, "share_of")
    stage.subscribe(receiver, "one")
    receiver.answers = [Answer(503)]
    stage.apply(stage.start(), 5)
    gets(receiver, "one", 5)


def test_who_subscribes_after_a_defect_in_the_look_for_subscriptions_is_served(
    stage: Stage, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = stage.start()
    failed = fail_once(monkeypatch, subscription_book, "load_subscriptions")
    stage.subscribe(receiver, "one")
    wait_until(failed.is_set, what="the defect")
    wait_until(lambda: stage.apply(sink, 1) and ids(receiver, "one"), what="an event", deadline_s=20)


def test_what_is_due_when_no_thread_can_be_started_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catching_up, "_READING_PAUSE_S", 0.1)
    due, done = list[str](), threading.Event()
    dispatch = Dispatch("test-dispatch", 1)

    def put(subscriber: str) -> None:
        due.append(subscriber)
        dispatch.put(done.set)

    timer: Any = Timer(put)  # type: ignore[arg-type]  # it does not look at what it is given
    failed = fail_once(monkeypatch, threading.Thread, "start", RuntimeError("can't start new thread"))
    timer.after(0.01, "one")
    wait_until(done.is_set, what="its turn", deadline_s=20)
    assert (failed.is_set(), due) == (True, ["one", "one"])
    timer.close()
    dispatch.close(10)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception | None = None) -> threading.Event:
    """Set when the call has failed."""
    failed, real = threading.Event(), getattr(owner, name)

    def call(*arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise error or KeyError("a defect")
        return real(*arguments)

    monkeypatch.setattr(owner, name, call)
    return failed


def test_a_successor_goes_on_for_everybody_where_they_are(stage: Stage, receiver: HttpServer) -> None:
    released = threading.Event()
    receiver.answer = held_until(released, "slow")
    stage.subscribe(receiver, "slow")
    stage.subscribe(receiver, "fast")
    first = stage.start(timeout_s=1.0)
    stage.apply(first, 20)
    first.close()
    released.set()
    second = stage.start()
    stage.apply(second, 5)
    gets(receiver, "slow", 25)
    assert ids(receiver, "fast") == list(range(1, 26))


def test_nothing_is_lost_for_anybody_whenever_the_worker_dies(stage: Stage, receiver: HttpServer) -> None:
    choose = random.Random(7)
    paths = [f"r{n}" for n in range(12)]
    for path in paths:
        stage.subscribe(receiver, path)
    receiver.answer = lambda request: Answer(503) if choose.random() < 0.1 else Answer()
    rest: list[object] = []
    for _ in range(8):
        sink = stage.start(patience_s=0.05)
        begin = sink._applied.sequence
        stage.publish(choose.randint(1, 40))
        receipts = write(sink, [[each] for each in stage.stream[begin:]])
        taken = choose.randint(0, len(receipts))
        try:
            sink.commit(dying_after(receipts, taken), "")
        except KeyboardInterrupt:
            rest.append(taken)
        if choose.random() < 0.5:
            sink._positions.store = fail  # type: ignore[method-assign]
            with pytest.raises(TransientError):
                sink.commit(write(sink, [stage.publish(5)]) if not rest else write(sink, [stage.stream[begin:]]), "")
        sink.close()
    sink = stage.start()
    receiver.answer = lambda request: Answer()
    apply(sink, [[*stage.stream[sink._applied.sequence :], *stage.publish(1)]])
    for path in paths:
        gets(receiver, path, len(stage.stream))


def dying_after(receipts: Sequence[Receipt], taken: int) -> Iterator[Receipt]:
    yield from receipts[:taken]
    if taken < len(receipts):
        raise KeyboardInterrupt


def fail(applied: object) -> None:
    raise TransientError("the broker is away", "wait")


def test_a_new_subscription_begins_where_the_stream_was(stage: Stage, receiver: HttpServer) -> None:
    sink = stage.start()
    stage.apply(sink, 10)
    stage.subscribe(receiver, "later", from_sequence=10)
    stage.subscribe(receiver, "behind", from_sequence=4)
    stage.subscribe(receiver, "ahead", from_sequence=13)
    wait_until(lambda: sum(sink._opened.receivers.counts()[0].values()) == 3, what="the sink knows of them")
    stage.apply(sink, 5)
    gets(receiver, "behind", 15, first=5)
    assert ids(receiver, "later") == [11, 12, 13, 14, 15]
    assert ids(receiver, "ahead") == [14, 15]


def test_a_new_subscription_begins_there_for_a_successor_too(stage: Stage, receiver: HttpServer) -> None:
    first = stage.start()
    stage.apply(first, 10)
    identifier = stage.subscribe(receiver, "ahead", from_sequence=13)
    wait_until(lambda: identifier in first._opened.receivers._all, what="the sink knows of it")
    stage.apply(first, 1)
    assert identifier in stage.standings()[0]
    first.close()
    stage.apply(stage.start(), 4)
    assert ids(receiver, "ahead") == [14, 15]


def test_a_subscription_that_fails_for_too_long_is_paused_with_the_reason_and_can_be_resumed(
    stage: Stage, receiver: HttpServer
) -> None:
    receiver.answer = lambda request: Answer(500) if request.target == "/bad" else Answer()
    identifier = stage.subscribe(receiver, "bad")
    stage.subscribe(receiver, "good")
    sink = stage.start(pause_after_s=0.3)
    stage.apply(sink, 5)
    state = wait_until(lambda: stage.standings()[1].get(identifier) if is_paused(stage, identifier) else None)
    assert (state.sequence, state.reason) == (0, f"http://127.0.0.1:{receiver.port} answered with status 500")
    assert sink.held() is None
    stage.apply(sink, 5)
    assert len(ids(receiver, "good")) == 10
    receiver.answer = lambda request: Answer()
    stage.write(identifier, replace(stage.read(identifier), resumed=1))
    gets(receiver, "bad", 10)


def is_paused(stage: Stage, identifier: str) -> bool:
    state = stage.standings()[1].get(identifier)
    return state is not None and state.state == "paused"


def test_a_receiver_that_wants_no_more_is_paused_at_once(stage: Stage, receiver: HttpServer) -> None:
    receiver.answer = lambda request: Answer(410)
    identifier = stage.subscribe(receiver, "gone")
    sink = stage.start()
    stage.apply(sink, 5)
    wait_until(lambda: is_paused(stage, identifier))
    assert len(receiver.requests) == 1


def test_a_person_pauses_resumes_and_ends_a_subscription(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "one")
    sink = stage.start()
    stage.apply(sink, 3)
    stage.write(identifier, replace(stage.read(identifier), paused=True))
    wait_until(lambda: is_paused(stage, identifier))
    stage.apply(sink, 3)
    assert ids(receiver, "one") == [1, 2, 3]
    stage.write(identifier, replace(stage.read(identifier), paused=False, resumed=1, skips=5))
    gets(receiver, "one", 3)
    wait_until(lambda: 6 in ids(receiver, "one"))
    assert ids(receiver, "one") == [1, 2, 3, 6]
    stage.write(identifier, None)
    wait_until(lambda: not sink._opened.receivers.counts()[0].total())
    stage.apply(sink, 3)
    assert ids(receiver, "one") == [1, 2, 3, 6]


def test_a_receiver_gets_again_what_it_got_while_a_request_is_under_way_too(stage: Stage, receiver: HttpServer) -> None:
    released = threading.Event()
    identifier = stage.subscribe(receiver, "one")
    stage.subscribe(receiver, "other")
    sink = stage.start(timeout_s=100.0)
    stage.apply(sink, 20)
    receiver.answer = held_until(released, "one")
    stage.apply(sink, 20)
    stage.write(identifier, replace(stage.read(identifier), resumed=1, back_to=5))
    wait_until(lambda: sink.held() == 5, what="the sink obeys")
    released.set()
    wait_until(lambda: ids(receiver, "one")[30:] == list(range(6, 41)), what="behind that request all from 6 on")
    stage.apply(sink, 5)
    wait_until(lambda: ids(receiver, "one")[-5:] == list(range(41, 46)))
    assert ids(receiver, "other") == list(range(1, 46))


def test_a_replay_that_is_wished_while_the_stream_is_read_goes_back_as_far(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "one")
    sink = stage.start()
    stage.apply(sink, 10)
    subscriber = sink._opened.receivers._all[identifier]
    wishes = iter([replace(stage.read(identifier), resumed=1, back_to=3)])

    def reread(writer: PartitionWriter, first: int, last: int) -> Iterator[tuple[bytes, int]]:
        for wish in wishes:
            stage.write(identifier, wish)
            wait_until(lambda: subscriber.resumed == 1, what="the sink obeys")
        return stage.reread(writer, first, last)

    sink.reread_by(reread)
    receiver.answers = [Answer(503)]
    stage.apply(sink, 5)
    wait_until(lambda: ids(receiver, "one")[-1] == 15, what="the newest")
    assert ids(receiver, "one")[10:] == list(range(4, 16))


def test_a_replay_that_was_wished_while_nobody_ran_happens_once(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "one")
    sink = stage.start()
    stage.apply(sink, 10)
    sink.close()
    stage.write(identifier, replace(stage.read(identifier), resumed=1, back_to=7))
    successor = stage.start()
    wait_until(lambda: ids(receiver, "one")[10:] == [8, 9, 10])
    wait_until(lambda: stage.apply(successor, 1) and not stage.standings()[1], what="it goes with the worker again")
    successor.close()
    stage.apply(stage.start(), 1)
    last = len(stage.stream)
    wait_until(lambda: ids(receiver, "one")[-1] == last)
    assert ids(receiver, "one")[10:] == list(range(8, last + 1))


def test_messages_that_are_gone_are_told_and_the_rest_is_delivered(stage: Stage, receiver: HttpServer) -> None:
    released = threading.Event()
    receiver.answer = held_until(released, "slow")
    identifier = stage.subscribe(receiver, "slow")
    sink = stage.start(timeout_s=1.0)
    stage.apply(sink, 80)
    stage.removed = 50
    released.set()
    wait_until(lambda: 80 in ids(receiver, "slow"), what="the rest")
    assert first_of_each(ids(receiver, "slow"))[-30:] == list(range(51, 81))
    assert sink._opened.receivers._all[identifier].missed == 50


def test_dead_letters_that_are_replayed_go_to_all_and_wait_for_one_that_fails(stage: Stage, receiver: HttpServer) -> None:
    receiver.answer = lambda request: Answer(503) if request.target == "/bad" else Answer()
    stage.subscribe(receiver, "bad")
    stage.subscribe(receiver, "good")
    replaying = stage.start(f"{WORKER}.replay")
    letters = [message(1, insert(ROWS, b"1", b"n"))]
    with pytest.raises(TransientError, match="1 subscriptions did not take the dead letters"):
        apply(replaying, [letters])
    receiver.answer = lambda request: Answer()
    apply(replaying, [letters])
    assert ids(receiver, "bad") == [1]
