"""A sink whose place in the stream is another one than before: it is moved there, or the worker stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.shared.errors import HistoryError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.positions.check import Start
from pgsluice.worker.positions.start_place import find_start
from pgsluice.worker.sinks.sink import Applied
from pgsluice.worker.stopping import WorkerStopping
from tests.worker.sinks.settings import worker_settings
from tests.worker.sinks.sqlite_sink import SqliteSink

BEFORE = Applied(7, 700, 7, "then")


class StreamsOf(GroupStreams):
    """Those that hold what is applied at message ``sequence``."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence

    def find_start(self, applied: Applied) -> Start:
        return Start(replace(applied, sequence=self._sequence))


class FixedSink(SqliteSink):
    """One that has no method ``renumber``."""

    renumber = None  # type: ignore[assignment]


def opened(directory: Path, sink_class: type[SqliteSink] = SqliteSink) -> SqliteSink:
    """One that has applied BEFORE."""
    settings, options = worker_settings("orders"), {"path": str(directory / "changes.db")}
    first = SqliteSink(settings, options)
    first.open()
    first.renumber(BEFORE)
    first.close()
    sink = sink_class(settings, options)
    assert sink.open() == BEFORE
    return sink


def test_a_sink_whose_place_counts_otherwise_now_is_moved_there(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    start = find_start(StreamsOf(3), sink, BEFORE, WorkerStopping(Pulse()))
    assert start.applied == replace(BEFORE, sequence=3)
    assert sink.open() == start.applied
    sink.close()


def test_a_sink_that_cannot_be_moved_stops_the_worker(tmp_path: Path) -> None:
    sink = opened(tmp_path, FixedSink)
    assert find_start(StreamsOf(BEFORE.sequence), sink, BEFORE, WorkerStopping(Pulse())) == Start(BEFORE)
    with pytest.raises(HistoryError, match="at message 3 instead of 7, and this sink cannot move its position"):
        find_start(StreamsOf(3), sink, BEFORE, WorkerStopping(Pulse()))
    sink.close()
