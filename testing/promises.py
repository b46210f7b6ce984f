"""Optional promises of a sink, and the tests of each."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])

_ASKS = "pgsluice_asks"


class Promise(enum.Enum):
    """``value`` describes the promise. If the sink has it as an ability (``worker.sinks.abilities``), the contract
    compares both."""

    EXACTLY_ONCE = "data and position are durable in one step: after any crash no change occurs twice"
    COPIED_ROWS = "rows that a copy read are delivered too"
    TABLES_WITHOUT_KEYS = "rows of a table without a key are all delivered, equal ones too"
    RENUMBER = "the position can be put at another sequence (RenumberedSink)"
    CATCH_UP = "a second place in the stream is kept with the position (TwoLaneSink)"
    REFUSALS = "single changes that the destination refuses are named (RejectedChanges)"


def asks(*promises: Promise) -> Callable[[T], T]:
    """Marks a test that means something only for sinks with all of these promises."""

    def mark(test: T) -> T:
        setattr(test, _ASKS, frozenset(promises))
        return test

    return mark


def asked(test: object) -> frozenset[Promise]:
    """Returns no promise at all where a test means something for every sink."""
    found: frozenset[Promise] = getattr(test, _ASKS, frozenset())
    return found
