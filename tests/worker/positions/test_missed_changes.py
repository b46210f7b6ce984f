"""What the log says of changes that met no row, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.rules.routing import EVERY_OPERATION, Route, Routing
from pgsluice.rules.transformation import UNTRANSFORMED, Transformation
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import TablePattern
from pgsluice.worker.batches.ownership import NEVER_COPIED, Copy, Ownership
from pgsluice.worker.positions.missed_changes import LOG_INTERVAL_S, MissedChangesLog
from pgsluice.worker.sinks.sink import MissedChanges
from pgsluice.worker.sinks.stdout.sink import StdoutSink
from tests.logged import fields_of

SINCE = "2026-01-31T12:00:00+00:00"
COPIED = Ownership({1: Copy("first", 1000)})
DIFFER = "changes met no row in a table that was copied: source and target differ"


def missed_changes(oid: int, name: str, changes: int) -> MissedChanges:
    return MissedChanges(oid, ("public", name), ("public", name), changes, SINCE)


def route(name: str) -> Route:
    return Route(TablePattern.parse(name), "", f"{name}_v2", (), frozenset(), EVERY_OPERATION, "routing.yaml:1")


class CountingStdout(StdoutSink):
    """Says that it missed what it is told."""

    def __init__(self, *missed: MissedChanges) -> None:
        self.found = list(missed)

    def missed(self) -> list[MissedChanges]:
        return self.found


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_table_is_named_once_and_again_after_an_interval_when_there_are_more(caplog: pytest.LogCaptureFixture) -> None:
    sink, clock = CountingStdout(), Clock()
    log = MissedChangesLog(sink, UNTRANSFORMED, clock)
    assert log.begin() == []
    for changes, at in ((1, 0.0), (2, LOG_INTERVAL_S - 1), (3, LOG_INTERVAL_S), (3, 3 * LOG_INTERVAL_S), (4, 4 * LOG_INTERVAL_S)):
        sink.found, clock.now = [missed_changes(1, "t", changes)], at
        assert log.note(COPIED) == sink.found
    said = [(record.message, fields_of(record)["changes"]) for record in caplog.records]
    assert said == [(DIFFER, 1), (DIFFER, 3), (DIFFER, 4)]
    told = fields_of(caplog.records[0])
    assert "'pgsluice tables resync public.t'" in told.pop("remedy")
    assert told == {"table": "public.t", "changes": 1, "since": SINCE, "updates": 0, "deletes": 0, "positions": ""}


def test_the_kinds_and_the_first_positions_are_named(caplog: pytest.LogCaptureFixture) -> None:
    positions = (Position(LSN(1000), 3), Position(LSN(2000), 1))
    sink = CountingStdout(replace(missed_changes(1, "t", 5), updates=2, deletes=3, positions=positions))
    log = MissedChangesLog(sink, UNTRANSFORMED)
    log.note(COPIED)
    told = fields_of(caplog.records[0])
    assert (told["updates"], told["deletes"], told["positions"]) == (2, 3, "0/3E8:3 0/7D0:1")
    assert "'pgsluice messages --from 0/3E8:3 --limit 1'" in told["remedy"]


def test_what_an_earlier_process_counted_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    sink = CountingStdout(missed_changes(1, "t", 5))
    log = MissedChangesLog(sink, UNTRANSFORMED)
    assert log.begin() == sink.found
    log.note(COPIED)
    sink.found = [missed_changes(1, "t", 5), missed_changes(2, "u", 1)]
    log.note(NEVER_COPIED)
    assert [(record.levelname, fields_of(record)["table"]) for record in caplog.records] == [("WARNING", "public.u")]
    assert DIFFER not in caplog.text
    sink.found = [missed_changes(1, "t", 6), missed_changes(2, "u", 1)]
    log.note(COPIED)
    assert caplog.records[-1].message == DIFFER


@pytest.mark.parametrize("known_as", ["t", "t_renamed"])
def test_a_table_with_a_filter_or_a_route_proves_nothing(known_as: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sink = CountingStdout()
    rules = Transformation(routing=Routing([route("t")]), names={1: ("public", "t")})
    log = MissedChangesLog(sink, rules)
    log.begin()
    sink.found = [missed_changes(1, known_as, 1)]
    log.note(COPIED)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_sink_that_does_not_count_has_missed_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = MissedChangesLog(StdoutSink.__new__(StdoutSink), UNTRANSFORMED)
    assert list(log.begin()) == list(log.note(COPIED)) == []
    assert caplog.records == []
