"""The endpoints as clients find them, of a process that is not there."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.metrics.listener import CONNECTION_TIMEOUT_S, MOST_CONNECTIONS, Listener
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.process.pulse import Activity
from tests.endpoints import ask
from tests.shared.metrics.vitals_of import STILL_S, pulse_of, vitals_of
from tests.waiting import wait_until

Listen = Callable[[Vitals], Listener]


def unexpected_end(error: BaseException) -> None:
    raise AssertionError("the endpoints were not to end") from error


@pytest.fixture
def listen() -> Iterator[Listen]:
    with ExitStack() as opened:

        def begin(vitals: Vitals) -> Listener:
            listener = Listener("127.0.0.1:0", vitals, unexpected_end)
            opened.callback(listener.close)
            return listener

        yield begin


def test_metrics_are_what_a_parser_of_prometheus_reads(listen: Listen) -> None:
    answer = ask(listen(vitals_of(pulse_of(Activity.WORKING))).url, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    [applied] = families["pgsluice_applied_changes"].samples
    assert applied.labels == {"group": "orders", "worker": "pg", "table": 'public."odd"\\name', "operation": "insert"}
    assert (applied.name, applied.value) == ("pgsluice_applied_changes_total", 7)
    stage = families["pgsluice_batch_seconds"]
    assert stage.type == "histogram"
    buckets = {each.labels["le"]: each.value for each in stage.samples if each.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"], buckets["7200.0"], buckets["+Inf"]) == (1, 1, 3, 3, 4)
    assert {each.value for each in stage.samples if each.name.endswith("_count")} == {4}
    activities = {each.labels["activity"]: each.value for each in families["pgsluice_activity"].samples}
    assert activities == {"starting": 0, "working": 1, "paused": 0, "ending": 0}


def test_health_and_readiness_say_why(listen: Listen) -> None:
    vitals = vitals_of(pulse_of(Activity.WORKING), sink=True, nats=False)
    url = listen(vitals).url
    assert ask(url, "/healthz").status == 200
    ready = ask(url, "/readyz?verbose")
    assert (ready.status, ready.content["why"], ready.content["sink"]) == (503, "without nats", True)
    vitals.pulse.progressed_at -= STILL_S
    ill = ask(url, "/healthz")
    assert (ill.status, ill.content["healthy"]) == (503, False)
    vitals.pulse.progressed()
    assert ask(url, "/healthz").status == 200


def test_other_paths_and_methods_are_refused(listen: Listen) -> None:
    url = listen(vitals_of(pulse_of(Activity.WORKING))).url
    assert ask(url, "/").status == 404
    assert ask(url, "/metrics/").status == 404
    assert [ask(url, "/metrics", method).status for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")] == [405] * 5
    head = ask(url, "/healthz", "HEAD")
    assert (head.status, head.body) == (200, b"")


def test_what_cannot_be_told_is_an_error_and_no_silence(listen: Listen) -> None:
    vitals = vitals_of(pulse_of(Activity.WORKING))
    url = listen(vitals).url

    def broken() -> list[Sample]:
        raise ValueError("hunter2")

    vitals.add(broken)
    answer = ask(url, "/metrics")
    assert answer.status == 500
    assert b"hunter2" not in answer.body
    assert ask(url, "/healthz").status == 200


def test_clients_that_say_nothing_keep_nobody_else_from_an_answer_for_long(listen: Listen) -> None:
    url = listen(vitals_of(pulse_of(Activity.WORKING))).url
    host, port = url.removeprefix("http://").split(":")
    with ExitStack() as silent:
        for _ in range(MOST_CONNECTIONS + 4):
            silent.enter_context(socket.create_connection((host, int(port))))

        def answers() -> bool:
            try:
                return ask(url, "/healthz").status == 200
            except OSError:
                return False

        wait_until(answers, what="an answer while others are silent")


def test_there_is_room_for_so_many_clients_at_once(listen: Listen) -> None:
    host, port = listen(vitals_of(pulse_of(Activity.WORKING))).url.removeprefix("http://").split(":")

    def is_sent_away() -> bool:
        with socket.create_connection((host, int(port)), timeout=1) as another:
            try:
                return another.recv(1) == b""
            except TimeoutError:
                return False

    with ExitStack() as silent:
        for _ in range(MOST_CONNECTIONS):
            silent.enter_context(socket.create_connection((host, int(port))))
        wait_until(is_sent_away, deadline_s=CONNECTION_TIMEOUT_S - 1, what="one client too many to be sent away")


def test_an_address_that_is_taken_or_not_ours_needs_a_person(listen: Listen) -> None:
    vitals = vitals_of(pulse_of(Activity.WORKING))
    taken = listen(vitals).url.removeprefix("http://")
    with pytest.raises(TerminalError, match="Address already in use"):
        Listener(taken, vitals, unexpected_end)
    with pytest.raises(TerminalError, match="give an address of this machine"):
        Listener("192.0.2.1:0", vitals, unexpected_end)


def test_nobody_answers_after_the_end() -> None:
    listener = Listener("127.0.0.1:0", vitals_of(pulse_of(Activity.WORKING)), unexpected_end)
    listener.close()
    with pytest.raises(OSError, match="refused"):
        ask(listener.url, "/healthz")


def test_the_end_does_not_wait_for_clients_that_might_come() -> None:
    """Each time half a second of the process's life, when the endpoints look for their end only now and then."""

    def seconds_to_close() -> float:
        listener = Listener("127.0.0.1:0", vitals_of(pulse_of(Activity.WORKING)), unexpected_end)
        assert ask(listener.url, "/healthz").status == 200
        began_at = time.monotonic()
        listener.close()
        return time.monotonic() - began_at

    assert min(seconds_to_close() for _ in range(4)) < 0.1
