"""Subscriptions that bring rules of their own: who sees what, what is refused, what becomes of rules that do not work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.subscriptions.subscription_records import ReceiverState
from pgsluice.testing.batch import STREAM_CREATED, apply, write_partition
from pgsluice.testing.changes_builder import delete, insert, message, table, truncate, update
from pgsluice.worker.sinks.sink import Partition
from pgsluice.worker.sinks.subscriptions import event_writer, live_pass
from pgsluice.worker.sinks.subscriptions.event_writer import EventWriter, Seen, Unseen, Unworkable, decode_events
from pgsluice.worker.sinks.subscriptions.sink import SubscriptionsSink
from pgsluice.worker.sinks.subscriptions.subscription_rules import EventView, read_rules
from tests.servers.http_server import Answer, HttpServer, Received
from tests.waiting import wait_until
from tests.worker.sinks.subscriptions.subscribed import Stage, first_of_each, ids

pytestmark = pytest.mark.timeout(120)

USERS = table("public.users", "id bigint", "email text", "age integer")
ORDERS = table("public.orders", "id bigint", "note text")
MASKED = """
tables:
  users:
    - {type: transform, column: email, parameters: {type: mask, mask_char: "*", keep_first: 1}}
"""
ADULTS = """
tables:
  users:
    - {type: filter, column: age, parameters: {operator: gte, value: 18}}
"""
MISSING = ADULTS.replace("age", "years")


def publish(stage: Stage, *messages: MessageChanges) -> Sequence[MessageChanges]:
    stage.stream += messages
    return messages


def told(receiver: HttpServer, path: str) -> list[str]:
    """What each event is, and the email in it."""
    found = []
    for request in receiver.accepted:
        if request.target == f"/{path}":
            found += [f"{each['operation']} {each['table']} {(each['after'] or {}).get('email')}" for each in request.objects]
    return found


def state_of(stage: Stage, identifier: str) -> ReceiverState | None:
    return stage.standings()[1].get(identifier)


def paused(stage: Stage, identifier: str) -> ReceiverState:
    found = wait_until(lambda: state if (state := state_of(stage, identifier)) and state.state == "paused" else None)
    assert found is not None
    return found


def knows(sink: SubscriptionsSink, count: int) -> bool:
    return sum(sink._opened.receivers.counts()[0].values()) == count


def test_each_sees_changes_as_its_own_rules_make_them_in_one_pass(stage: Stage, receiver: HttpServer) -> None:
    stage.subscribe(receiver, "all")
    stage.subscribe(receiver, "masked", rules=MASKED)
    stage.subscribe(receiver, "adults", table="users", rules=ADULTS)
    stage.subscribe(receiver, "deletes", table="users", events=("delete",), rules=ADULTS)
    stage.subscribe(receiver, "orders", table="orders", rules=ADULTS)
    sink = stage.start()
    first = message(1, insert(USERS, b"1", b"ann@x", b"30"), insert(USERS, b"2", b"bob@x", b"7"), insert(ORDERS, b"5", b"n"))
    second = message(2, update(USERS, b"1", b"ann@x", b"17"), delete(USERS, b"2", None, None), truncate(USERS, ORDERS))
    apply(sink, [publish(stage, first, second)])
    plain = ["INSERT users ann@x", "INSERT users bob@x", "INSERT orders None", "UPDATE users ann@x", "DELETE users None"]
    truncated = ["TRUNCATE users None", "TRUNCATE orders None"]
    assert told(receiver, "all") == plain + truncated
    masked = [each.replace("ann@x", "a***x").replace("bob@x", "b***x") for each in plain]
    assert told(receiver, "masked") == masked + truncated
    left = ["DELETE users None", "DELETE users None"]
    assert told(receiver, "adults") == ["INSERT users ann@x", *left, "TRUNCATE users None"]
    assert told(receiver, "deletes") == left
    assert told(receiver, "orders") == ["INSERT orders None", "TRUNCATE orders None"]
    assert sink._opened.blocks.messages_read == 0


def test_rules_that_cannot_be_applied_pause_their_subscription_alone_at_that_change(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "missing", rules=MISSING)
    stage.subscribe(receiver, "good")
    sink = stage.start()
    messages = [message(n, insert(ORDERS, b"%d" % n, b"n")) for n in (1, 2)]
    bad = message(3, insert(USERS, b"3", b"secret@x", b"30"))
    apply(sink, [publish(stage, *messages, bad)])
    state = paused(stage, identifier)
    assert state.sequence == 2
    assert state.reason.startswith("the rules do not fit: rules:4: table 'users', rule 1: ")
    assert "there is no column 'years'" in state.reason
    assert ids(receiver, "good") == [1, 2, 3]
    assert ids(receiver, "missing") == [1, 2]
    assert sink.held() is None
    assert stage.told_of() == {identifier: state.reason}
    stage.write(identifier, replace(stage.read(identifier), paused=True))
    assert stage.told_of() == {}


def replacing(pattern: str, replace: str) -> str:
    parameters = f'{{type: regex, pattern: "{pattern}", replace: "{replace}"}}'
    return f"tables: {{users: [{{type: transform, column: email, parameters: {parameters}}}]}}"


def test_a_row_that_rules_cannot_process_is_never_told_without_them(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "growing", rules=replacing("a", "b" * 5000))
    sink = stage.start()
    apply(sink, [publish(stage, message(1, insert(USERS, b"1", b"a" * 40, b"30")))])
    state = paused(stage, identifier)
    assert state.reason.endswith("the value would become larger than 16 times its size and 64 KiB"), state.reason
    assert "aaa" not in state.reason
    assert ids(receiver, "growing") == []


def seen(views: Sequence[EventView], message: MessageChanges) -> list[Seen]:
    """What a task hands over of a message for each view."""
    partition = Partition(1, 1)
    (found,) = (each for body in EventWriter(views).write(partition, [message]) for each in decode_events(body))
    return [found.seen(view.digest) for view in views]


SLOW = replacing("(?s)(a).*z|(a)", "b")
"""RE2 looks at all of the rest for each a."""


def test_rules_are_stopped_while_they_run_and_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "LONGEST_S", 0.5)
    slow, quick = EventView("", "", SLOW), EventView("", "", MASKED)
    many = message(1, *(insert(USERS, b"%d" % n, b"a" * 10_000, b"30") for n in range(2000)))
    began = time.monotonic()
    assert seen([slow], many) == [Unworkable("the rules needed more than 0.5 s for a message of the stream")]
    assert seen([slow, quick], many) == [Unseen(), Unseen()], "each is read again by itself"
    assert time.monotonic() - began < 30, "all of the values would take minutes"


def test_a_filter_is_stopped_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "LONGEST_S", 0.2)
    asked = ", ".join("{column: email, operator: contains, value: Z, ignore_case: true}" for _ in range(100))
    view = EventView("", "", f"tables: {{users: [{{type: filter, any: [{asked}]}}]}}")
    large = message(1, *(insert(USERS, b"%d" % n, b"a" * 1_000_000, b"30") for n in range(40)))
    began = time.thread_time()
    assert seen([view], large) == [Unworkable("the rules needed more than 0.2 s for a message of the stream")]
    assert time.thread_time() - began < 5


def test_rules_make_a_message_8_mib_larger_at_most() -> None:
    growing = EventView("", "", replacing("a", "b" * 7000))
    some, many = (message(1, *(insert(USERS, b"%d" % n, b"aaaa", b"30") for n in range(count))) for count in (200, 400))
    (fitting,) = seen([growing], some)
    assert isinstance(fitting, list)
    assert len(fitting[0].text) > 28_000
    assert seen([growing], many) == [Unworkable("the rules make one message of the stream more than 8 MiB larger")]


def test_no_view_is_handed_over_that_is_too_large_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "MOST_VIEWED_BYTES", 1000)
    masked, adults = EventView("", "", MASKED), EventView("", "", ADULTS)
    large = message(1, *(insert(USERS, b"%d" % n, b"ann@x", b"7") for n in range(50)))
    assert seen([masked, adults], large) == [Unseen(), []]
    (alone,) = seen([masked], large)
    assert isinstance(alone, list)
    assert len(alone) == 50


def test_a_pattern_is_applied_to_no_value_that_it_could_search_for_minutes(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "slow-pattern", rules=SLOW)
    sink = stage.start()
    apply(sink, [publish(stage, message(1, insert(USERS, b"1", b"a" * 1_000_000, b"30")))])
    assert "the value has more than 64 KiB" in paused(stage, identifier).reason


def test_rules_that_take_too_long_pause_their_subscription(
    stage: Stage, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "LONGEST_S", 0.0)
    identifier = stage.subscribe(receiver, "slow", rules=ADULTS)
    sink = stage.start()
    apply(sink, [publish(stage, message(1, insert(USERS, b"1", b"e", b"30")))])
    assert "needed more than" in paused(stage, identifier).reason


def test_who_subscribed_after_a_batch_was_written_is_not_told_without_its_rules(stage: Stage, receiver: HttpServer) -> None:
    sink = stage.start()
    some = publish(stage, message(1, insert(USERS, b"1", b"ann@x", b"30"), insert(USERS, b"2", b"bob@x", b"7")))
    receipts = write_partition(sink.writer(), some)
    stage.subscribe(receiver, "adults", rules=ADULTS)
    wait_until(lambda: knows(sink, 1), what="the sink knows of it")
    sink.commit(receipts, STREAM_CREATED)
    wait_until(lambda: ids(receiver, "adults") == [1])
    apply(sink, [publish(stage, message(2, insert(USERS, b"3", b"e", b"7"), insert(USERS, b"4", b"e", b"18")))])
    wait_until(lambda: ids(receiver, "adults") == [1, 4])


def test_what_waits_for_all_receivers_is_bounded(stage: Stage, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_pass, "MOST_OWN_BYTES", 2000)
    waiting: list[int] = []

    def answer(request: Received) -> Answer:
        waiting.append(sink._opened.live._queued_own_bytes())
        return Answer()

    receiver.answer = answer
    for age in range(5):
        stage.subscribe(receiver, f"view{age}", rules=ADULTS.replace("18", str(age)))
    sink = stage.start(patience_s=20.0)
    apply(sink, [publish(stage, *map(three_users, range(1, 61)))])
    assert all(ids(receiver, f"view{age}") == list(range(3, 183)) for age in range(5))
    assert sink._opened.blocks.messages_read == 0
    assert max(waiting) < 10_000  # a message is about 800 bytes for each of them; without a bound it were 30,000


def test_what_a_message_becomes_for_all_is_bounded_and_the_rest_read_from_the_stream(
    stage: Stage, receiver: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "MOST_VIEWED_BYTES", 1500)
    paths = [f"view{n}" for n in range(5)]
    for age, path in enumerate(paths):
        stage.subscribe(receiver, path, rules=ADULTS.replace("18", str(age)))
    sink = stage.start()
    for first in range(1, 31, 10):
        apply(sink, [publish(stage, *map(three_users, range(first, first + 10)))])
    wanted = list(range(3, 93))
    wait_until(lambda: all(len(set(ids(receiver, path))) == len(wanted) for path in paths), deadline_s=60)
    assert all(first_of_each(ids(receiver, path)) == wanted for path in paths)
    assert sink._opened.blocks.messages_read > 0


def three_users(number: int) -> MessageChanges:
    return message(number, *(insert(USERS, b"%d" % (3 * number + k), b"e", b"30") for k in range(3)))


def test_a_table_that_was_renamed_stays_masked() -> None:
    view = EventView("", "", MASKED)
    renamed = table("public.people", "id bigint", "email text", "age integer")
    some = [message(1, insert(renamed, b"1", b"ann@x", b"30"))]
    partition = Partition(1, 1, names={renamed.oid: ("public", "users")})
    (found,) = (each for body in EventWriter([view]).write(partition, some) for each in decode_events(body))
    seen = found.seen(view.digest)
    assert isinstance(seen, list)
    assert [b"a***x" in event.text for event in seen] == [True]
    assert [b"ann@x" in event.text for event in found.events] == [True]


def test_a_record_that_somebody_wrote_past_the_server_is_read_as_strictly(stage: Stage, receiver: HttpServer) -> None:
    identifier = stage.subscribe(receiver, "hostile", rules=BOMB)
    sink = stage.start()
    began = time.monotonic()
    apply(sink, [publish(stage, message(1, insert(USERS, b"1", b"e", b"30")))])
    assert "anchors and aliases are not taken here" in paused(stage, identifier).reason
    assert time.monotonic() - began < 30


BOMB = "tables:\n  users:\n    - any: &a [{column: age, operator: eq, value: 1}]\n" + "".join(
    f"    - any: &{after} [{', '.join([f'any: *{before}'] * 9)}]\n".replace("any: *", "{any: *").replace(",", "},")
    for before, after in ("ab", "bc", "cd", "de", "ef", "fg", "gh")
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "rules:1: not a mapping"),
        ("tables: {users: [{type: filter, column: age, parameters: {operator: near, value: 1}}]}", "operator 'near' is unknown"),
        ("tables: {users: [{type: program, column: age}]}", "rules:1: table 'users', rule 1: type 'program' is unknown"),
        ("tables:\n\tusers: []", "rules:2"),
        ("tables: !!python/object/apply:os.system [ls]", "rules:1: tables is not a mapping"),
        (BOMB, "rules:3: anchors and aliases are not taken here"),
        ("tables: " + "[" * 30 + "]" * 30, "rules:1: is nested more than 20 levels deep"),
        ("tables: {}\n" + "#" * 8000, "rules have more than 8000 characters"),
        (replacing(r"(a+)+\\1", "x"), "pattern '(a+)+\\1' is not in RE2's syntax"),
        (replacing("(?=a)a", "x"), "rules:1: table 'users', rule 1: pattern '(?=a)a' is not in RE2's syntax"),
        (replacing("(?=a)(?:(?:a{1000}){1000}){1000}", "x"), "is too large with its repetitions written out"),
        (replacing("(?P<n>(?:a{100}){100})", "$n"), "is too large with its repetitions written out"),
        (replacing("a" * 1001, "x"), "pattern has 1001 characters, and 1000 is the most"),
        (replacing("()" * 11, "$11"), "uses a group beyond 9"),
        (f"tables: {{users: [{', '.join(['{type: transform, column: e, parameters: {type: mask}}'] * 101)}]}}", "101 rules"),
        ("tables: {users: [{type: transform, column: e, parameters: {type: regex, pattern: '(', replace: x}}]}", "pattern '('"),
    ],
)
def test_what_is_wrong_with_rules_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_rules(text)
    assert said in str(raised.value)


def test_no_rules_are_rules_too() -> None:
    assert read_rules(" \n").entries == read_rules("tables: {}").entries == ()
