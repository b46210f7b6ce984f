"""What the webhook sink does with each kind of answer, and with receivers that do not answer as they should."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import trustme

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.process.pulse import Pulse, Wait
from pgsluice.shared.process.retrying import Pauses
from pgsluice.testing.batch import STREAM_CREATED, Batch, apply, write
from pgsluice.testing.changes_builder import insert, message, table
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.sink import Receipt
from pgsluice.worker.sinks.webhook.batch_delivery import WAITING_REQUESTS
from pgsluice.worker.sinks.webhook.sink import WebhookSink
from tests.servers.http_server import Answer, Failure, HttpServer, Received
from tests.waiting import wait_until
from tests.worker.sinks.webhook.sinks import SECRET, SHORT_PAUSES, NewSink
from tests.worker.sinks.webhook.test_signature import expected_signature

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 30.0
LONG_PAUSES = Pauses(DEADLINE_S, DEADLINE_S, least=1.0)
"""So long that a test whose requests come one after the other had none."""
ROWS = table("public.rows", "id bigint", "note text")


def rows(count: int, sequence: int = 1, note: bytes = b"n") -> Batch:
    """One partition with one message: so many rows with keys from 0."""
    return [[message(sequence, *(insert(ROWS, b"%d" % n, note) for n in range(count)))]]


def gaps(receiver: HttpServer) -> list[float]:
    """The seconds between requests."""
    times = [request.at for request in receiver.requests]
    return [later - earlier for earlier, later in pairwise(times)]


def test_an_error_of_the_receiver_is_tried_again_with_growing_pauses(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [Answer(500), Answer(503)]
    assert apply(open_sink(pauses=Pauses(0.2, 10.0, least=1.0)), batch([1])) == position(1)
    assert [request.answer.status for request in receiver.requests if isinstance(request.answer, Answer)] == [500, 503, 200]
    assert len({(request.headers["idempotency-key"], request.body) for request in receiver.requests}) == 1
    first, second = gaps(receiver)
    assert (first >= 0.2, second >= 0.4) == (True, True)


@pytest.mark.parametrize("status", [408, 425, 429, 502, 504])
def test_an_answer_that_asks_for_another_attempt_gets_one(status: int, receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [Answer(status)]
    apply(open_sink(), batch([1]))
    assert len(receiver.requests) == 2


def committing(sink: WebhookSink, of: Batch) -> threading.Thread:
    """Ends when the batch is applied, or broken off."""

    def commit() -> None:
        with contextlib.suppress(TransientError):
            apply(sink, of)

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    return thread


def waited_for(pulse: Pulse) -> Wait:
    wait = wait_until(lambda: pulse.wait, what="a wait")
    assert wait is not None
    return wait


@pytest.mark.parametrize("answer", [Answer(503), Failure.CLOSE, Failure.HANG])
def test_a_receiver_that_is_away_is_what_the_process_waits_for(
    answer: Answer | Failure, receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answer = lambda request: answer
    sink, pulse = open_sink(timeout_s=0.3), Pulse()
    sink.report_to(pulse)
    delivering = committing(sink, batch([1]))
    wait = waited_for(pulse)
    assert wait.cause is Cause.TARGET
    assert wait.next_attempt_at is not None
    assert "hook" not in wait.reason
    wait_until(lambda: len(receiver.requests) > 1, what="another attempt")
    assert pulse.wait is not None
    assert pulse.wait.since == wait.since
    receiver.answer = lambda request: Answer()
    delivering.join(DEADLINE_S)
    assert pulse.wait is None


def test_a_receiver_that_throttles_is_waited_for_until_it_may_be_asked_again(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [Answer(429, {"Retry-After": "600"})]
    sink, pulse = open_sink(), Pulse()
    sink.report_to(pulse)
    delivering = committing(sink, batch([1]))
    wait = waited_for(pulse)
    assert wait.cause is Cause.THROTTLED
    assert wait.next_attempt_at is not None
    assert (wait.next_attempt_at - wait.since).total_seconds() >= 599
    sink.break_off()
    delivering.join(DEADLINE_S)


def test_a_lane_that_goes_on_is_progress_and_the_one_that_waits_is_still_waited_for(
    receiver: HttpServer, open_sink: NewSink
) -> None:
    """Each lane has a request under way; the first is put off for long, and after that the others are taken."""
    puts_off = threading.Event()
    put_off: list[bytes] = []

    def answer(request: Received) -> Answer:
        with receiver.lock:
            if not put_off:
                put_off.append(request.body)
        if request.body in put_off:
            wait_until(lambda: receiver.under_way == 4, what="a request of each lane")
            return Answer(503, {"Retry-After": "600"})
        assert puts_off.wait(DEADLINE_S)
        return Answer()

    receiver.answer = answer
    sink, pulse = open_sink(), Pulse()
    sink.report_to(pulse)
    delivering = committing(sink, rows(40))
    waited_for(pulse)
    before = pulse.progressed_at
    puts_off.set()
    wait_until(lambda: pulse.progressed_at > before, what="progress")
    wait_until(lambda: len(receiver.accepted) == 3, what="the other lanes' requests")
    assert waited_for(pulse).cause is Cause.TARGET
    sink.break_off()
    delivering.join(DEADLINE_S)


def test_retry_after_is_obeyed_by_all_lanes(receiver: HttpServer, open_sink: NewSink) -> None:
    put_off, is_told = Answer(429, {"Retry-After": "1"}), threading.Event()

    def answer(request: Received) -> Answer:
        assert is_told.wait(DEADLINE_S)
        return Answer()

    receiver.answers, receiver.answer = [put_off], answer
    sink, pulse = open_sink(format="single", connections=2), Pulse()
    sink.report_to(pulse)
    taking_turns = [insert(ROWS, b"%d" % n, b"n") for pair in zip(range(4), range(4, 8), strict=True) for n in pair]
    delivering = committing(sink, [[message(1, *taking_turns)]])
    waited_for(pulse)
    is_told.set()
    delivering.join(DEADLINE_S)
    asked_at = next(request.at for request in receiver.requests if request.answer == put_off)
    after = sorted(request.at - asked_at for request in receiver.requests if request.at > asked_at)
    assert sum(seconds < 1.0 for seconds in after) <= 1, "but for the other lane's request that was under way"
    assert len(receiver.accepted) == 8


@pytest.mark.parametrize("failure", [Failure.CLOSE, Failure.CLOSE_IN_ANSWER])
def test_a_receiver_that_closes_in_the_middle_is_tried_again(failure: Failure, receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [failure]
    apply(open_sink(), batch([1]))
    assert len(receiver.requests) == 2
    assert gaps(receiver)[0] >= SHORT_PAUSES.first_s


@pytest.mark.parametrize("failure", [Failure.HANG, Failure.DRIP])
def test_a_receiver_that_does_not_come_to_an_end_is_tried_again(
    failure: Failure, receiver: HttpServer, open_sink: NewSink
) -> None:
    receiver.answers = [failure]
    apply(open_sink(timeout_s=1.0), batch([1]))
    assert len(receiver.requests) == 2
    assert 1.0 <= gaps(receiver)[0] < 4.0


def test_a_kept_connection_that_was_closed_meanwhile_costs_no_pause(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [Failure.CLOSE_AFTER, Failure.CLOSE_AFTER]
    sink = open_sink(pauses=LONG_PAUSES)
    for sequence in (1, 2, 3):
        apply(sink, batch([sequence]))
    assert receiver.objects() != []
    assert max(gaps(receiver)) < LONG_PAUSES.first_s
    assert len(receiver.requests) == 3


def test_a_receiver_that_is_down_is_tried_again_until_it_is_back(open_sink: NewSink) -> None:
    with HttpServer() as gone:
        pass
    sink = open_sink(gone)
    committing = threading.Thread(target=apply, args=(sink, batch([1])), daemon=True)
    committing.start()
    with HttpServer(port=gone.port) as back:
        committing.join(DEADLINE_S)
        assert not committing.is_alive()
        assert [each["after"]["id"] for each in back.objects()] == events(1)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int, receiver: HttpServer, open_sink: NewSink) -> None:
    with HttpServer() as elsewhere:
        receiver.answer = lambda request: Answer(status, {"Location": elsewhere.url})
        with pytest.raises(TerminalError, match=f"answered with status {status}.*redirects are not followed") as raised:
            apply(open_sink(), batch([1]))
        assert "from=test" not in str(raised.value)
        assert elsewhere.requests == []


def test_an_error_that_ends_one_lane_ends_the_patience_of_the_others(receiver: HttpServer, open_sink: NewSink) -> None:
    """One lane would wait for ever."""
    receiver.answer = lambda request: Answer(301) if b'"id":0,' in request.body else Answer(503)
    with pytest.raises(TerminalError, match="status 301"):
        apply(open_sink(format="single"), rows(20))


def test_requests_are_signed_and_carry_the_given_headers(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [Answer(500)]
    a_second = Pauses(1.0, 10.0, least=1.0)
    apply(open_sink(secret=SECRET, token="t0ken", headers={"X-Tenant": "shop"}, pauses=a_second), batch([1]))
    for request in receiver.requests:
        headers = request.headers
        assert headers["webhook-id"] == headers["idempotency-key"]
        signature = expected_signature(SECRET, headers["webhook-id"], headers["webhook-timestamp"], request.body)
        assert headers["webhook-signature"] == signature
        assert headers["authorization"] == "Bearer t0ken"
        assert headers["x-tenant"] == "shop"
        assert request.target == "/hook?from=test"
    first, second = (int(request.headers["webhook-timestamp"]) for request in receiver.requests)
    assert first < second, "the time of the attempt"


def test_an_answer_before_the_request_was_read_counts(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answers = [Failure.CLOSE_EARLY]
    with pytest.raises(RejectedChanges) as raised:
        apply(open_sink(), rows(1, note=b"x" * 20_000_000))
    assert [each.reason for each in raised.value.rejections] == ["the webhook's receiver answered with status 413"]


def test_connections_are_kept_and_several_requests_are_under_way(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.delay_s = 0.02
    sink = open_sink(format="single", connections=4)
    apply(sink, rows(40))
    apply(sink, rows(40, sequence=2))
    assert len({request.peer_port for request in receiver.requests}) <= 4
    assert receiver.most_under_way == 4


def test_a_slow_receiver_holds_back_the_receipts(receiver: HttpServer, open_sink: NewSink) -> None:
    """What is in memory is bounded by what the lanes hold."""
    receiver.answer = lambda request: Failure.HANG
    sink = open_sink(connections=2, batch_size=1, timeout_s=60.0)
    taken = 0

    def receipts() -> Iterator[Receipt]:
        nonlocal taken
        for sequence in range(1, 1000):
            taken = sequence
            yield from write(sink, rows(1, sequence))

    def commit() -> None:
        with pytest.raises(TransientError):
            sink.commit(receipts(), STREAM_CREATED)

    committing = threading.Thread(target=commit, daemon=True)
    committing.start()
    wait_until(lambda: receiver.under_way, what="a request under way")
    wait_until(lambda: taken >= 2 + WAITING_REQUESTS, what="receipts")
    committing.join(0.5)
    assert taken <= 2 * (2 + WAITING_REQUESTS) + 1
    sink.break_off()
    committing.join(DEADLINE_S)
    assert not committing.is_alive()


def test_a_request_under_way_is_broken_off_at_once(receiver: HttpServer, open_sink: NewSink) -> None:
    receiver.answer = lambda request: Failure.HANG
    sink = open_sink(timeout_s=60.0)

    def break_off_when_under_way() -> None:
        wait_until(lambda: receiver.under_way)
        sink.break_off()

    breaking = threading.Thread(target=break_off_when_under_way, daemon=True)
    breaking.start()
    with pytest.raises(TransientError):
        apply(sink, batch([1]))
    breaking.join(DEADLINE_S)


class TestCertificates:
    def serve(self, authority: trustme.CA, *names: str) -> HttpServer:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(*names).configure_cert(context)
        return HttpServer(context)

    def test_a_certificate_that_the_given_file_vouches_for_is_trusted(
        self, authority: trustme.CA, ca_file: str, open_sink: NewSink
    ) -> None:
        with self.serve(authority, "127.0.0.1") as receiver:
            sink = open_sink(receiver, ca_file=ca_file)
            apply(sink, batch([1, 2]))
            apply(sink, batch([3]))
            assert [each["after"]["id"] for each in receiver.objects()] == events(3)
            assert len({request.peer_port for request in receiver.requests}) == 1

    def test_a_certificate_of_another_host_is_refused(self, authority: trustme.CA, ca_file: str, open_sink: NewSink) -> None:
        with self.serve(authority, "hooks.example.com") as receiver:
            with pytest.raises(TerminalError, match=r"the certificate of https://127\.0\.0\.1:\d+ is not trusted") as raised:
                apply(open_sink(receiver, ca_file=ca_file), batch([1]))
            assert "IP address mismatch" in str(raised.value)
            assert receiver.requests == []

    def test_a_certificate_nobody_vouches_for_is_refused(self, authority: trustme.CA, open_sink: NewSink) -> None:
        with self.serve(authority, "127.0.0.1") as receiver:
            with pytest.raises(TerminalError, match=r"is not trusted.*webhook-ca"):
                apply(open_sink(receiver), batch([1]))
            assert receiver.requests == []

    def test_a_closed_connection_with_tls_costs_no_pause(self, authority: trustme.CA, ca_file: str, open_sink: NewSink) -> None:
        with self.serve(authority, "127.0.0.1") as receiver:
            receiver.answers = [Failure.CLOSE_AFTER, Failure.CLOSE_AFTER]
            sink = open_sink(receiver, ca_file=ca_file, pauses=LONG_PAUSES)
            for sequence in (1, 2, 3):
                apply(sink, batch([sequence]))
            assert max(gaps(receiver)) < LONG_PAUSES.first_s

    def test_a_file_without_certificates_is_refused(self, open_sink: NewSink, tmp_path: Path) -> None:
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(TerminalError, match=r"webhook-ca: .* holds no certificate"):
            open_sink(ca_file=str(tmp_path / "empty.pem"))
