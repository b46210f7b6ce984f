"""What a server could not take at once is halved; what it takes soon grows again, slowly."""

from __future__ import annotations

import pytest

from pgsluice.worker.sinks.search.request_size import RequestSize


def halved(times: int) -> RequestSize:
    size = RequestSize(1000, 10_000, timeout_s=20.0)
    for _ in range(times):
        size.note_refusal(size.items, int(size.bytes))
    return size


def test_items_and_bytes_are_halved_together_down_to_one_item() -> None:
    assert (halved(0).items, halved(0).bytes) == (1000, 10_000)
    assert (halved(2).items, halved(2).bytes) == (250, 2500)
    assert halved(30).items == 1


def test_requests_of_one_size_that_fail_together_are_halved_once() -> None:
    size = RequestSize(1000, timeout_s=20.0)
    for _ in range(4):
        size.note_refusal(1000)
    assert size.items == 500


def test_a_small_request_that_was_too_much_is_what_is_halved() -> None:
    size = RequestSize(1000, 10_000, timeout_s=20.0)
    size.note_refusal(40)
    assert size.items == 20
    size.note_refusal(1, 100)
    assert size.bytes == 50


def test_answers_that_come_soon_make_it_grow_to_where_it_was() -> None:
    size = halved(3)
    grown = []
    for _ in range(100):
        size.note_answer(1.0, size.items)
        grown.append(size.items)
    assert grown == sorted(grown)
    assert grown[5] < 250
    assert grown[-1] == 1000


@pytest.mark.parametrize(("seconds", "items"), [(6.0, 250), (1.0, 10)])
def test_answers_that_take_their_time_or_are_to_small_requests_change_nothing(seconds: float, items: int) -> None:
    size = halved(2)
    for _ in range(100):
        size.note_answer(seconds, items)
    assert size.items == 250


def test_an_answer_that_is_nearly_late_halves_it_before_one_is() -> None:
    size = RequestSize(1000, timeout_s=20.0)
    size.note_answer(11.0, 800)
    assert size.items == 400
