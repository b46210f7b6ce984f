"""The start of a worker in its streams: its sink's position, found there again."""

from __future__ import annotations

from pgsluice.shared import telemetry
from pgsluice.shared.errors import HistoryError
from pgsluice.worker.group_streams import GroupStreams
from pgsluice.worker.positions.check import Start
from pgsluice.worker.sinks.abilities import RenumberedSink
from pgsluice.worker.sinks.sink import Applied, Sink
from pgsluice.worker.stopping import Waiting, WorkerStopping

log = telemetry.logger(__name__)


def find_start(streams: GroupStreams, sink: Sink, applied: Applied, stopping: WorkerStopping) -> Start:
    """Waits while the stream of changes ends before what is applied. Raises HistoryError, or as ``WorkerStopping.check``."""
    start = stopping.wait_for(lambda: streams.find_start(applied), Waiting("the group's streams"))
    if start != Start(applied):
        log.warning(
            "the applied changes are at another sequence of the stream than before, as after a power cut; continuing there",
            sequence_before=applied.sequence,
            sequence=start.applied.sequence,
        )
        _renumber(sink, applied, start.applied)
    return start


def _renumber(sink: Sink, applied: Applied, found: Applied) -> None:
    """Stores the found position, if it differs. Messages of equal sequences may differ: then only what to leave out of
    them is new."""
    if found == applied:
        return
    if not isinstance(sink, RenumberedSink):
        raise HistoryError(
            f"the stream has the applied changes at message {found.sequence} instead of {applied.sequence}, and this sink "
            "cannot move its position",
            "give the sink a method 'renumber', or drop the group and copy the tables again",
        )
    sink.renumber(found)
