"""Who asks is told what is the case now, soon; and nobody looks unless somebody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pgsluice.shared.metrics import asked_looks
from pgsluice.shared.metrics.asked_looks import AskedLooks


class Looker:
    """Counts its looks, each of which waits until it ``may_look``."""

    def __init__(self) -> None:
        self.looks = AskedLooks()
        self.count = 0
        self.may_look = threading.Event()
        self.may_look.set()
        self._wanted, self._is_ending = threading.Event(), False
        self.looks.begin(self._wanted.set)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._wanted.wait() and not self._is_ending:
            self._wanted.clear()
            with self.looks.answering():
                self.may_look.wait()
                self.count += 1

    def asked(self) -> int:
        self.looks.ask()
        return self.count

    def end(self) -> None:
        self._is_ending = True
        self.may_look.set()
        self.looks.end()
        self._wanted.set()
        self._thread.join(10)


@pytest.fixture
def looker() -> Iterator[Looker]:
    looker = Looker()
    yield looker
    looker.end()


def test_each_who_asks_is_told_of_a_look_that_began_after_that(looker: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_looks, "ANSWER_DEADLINE_S", 30.0)
    monkeypatch.setattr(asked_looks, "FRESH_S", 0.0)
    assert [looker.asked() for _ in range(5)] == [1, 2, 3, 4, 5]


def test_who_asks_again_at_once_is_told_the_same(looker: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_looks, "ANSWER_DEADLINE_S", 30.0)
    monkeypatch.setattr(asked_looks, "FRESH_S", 30.0)
    assert [looker.asked() for _ in range(5)] == [1, 1, 1, 1, 1]


def test_nobody_looks_before_somebody_asks(looker: Looker) -> None:
    assert looker.count == 0


def test_a_look_that_hangs_keeps_nobody_for_long(looker: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_looks, "ANSWER_DEADLINE_S", 0.05)
    looker.may_look.clear()
    assert looker.asked() == 0
    assert looker.asked() == 0
    looker.may_look.set()


def test_nobody_waits_where_nobody_looks_any_more(looker: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_looks, "ANSWER_DEADLINE_S", 60.0)
    looker.may_look.clear()
    began_at = time.monotonic()
    asking = threading.Thread(target=looker.asked)
    asking.start()
    looker.looks.end()
    asking.join(30)
    looker.asked()
    assert not asking.is_alive()
    assert time.monotonic() - began_at < 30
