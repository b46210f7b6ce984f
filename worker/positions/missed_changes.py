"""Changes that met no row in the sink, for the log and the worker's report.

An update or delete has no effect if its row does not exist. That is correct when the sink was started without the
source's rows, and for a table with a filter or a route: a delete is sent where a row may have been, and some rows never
are. A table that was copied, and whose changes all come, has each row that they refer to; so there it is evidence that
source and target differ. (An update that brings its whole row writes it, whether it existed or not, and is not
counted.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from pgsluice.rules.transformation import Transformation
from pgsluice.shared import telemetry
from pgsluice.shared.alerts.missing_rows import missed_remedy
from pgsluice.shared.broker.worker_records import MissedReport
from pgsluice.worker.batches.ownership import Ownership
from pgsluice.worker.sinks.abilities import CountingSink
from pgsluice.worker.sinks.sink import MissedChanges, Sink

LOG_INTERVAL_S = 600.0
"""Minimum interval between two log entries about a table."""

REPORTED_TABLES = 20
"""The report is one small record; who has more tables in trouble needs no longer list."""

log = telemetry.logger(__name__)


@dataclass(slots=True)
class _Logged:
    changes: int
    at: float


class MissedChangesLog:
    """Logs misses once for each table, and again when there are more and LOG_INTERVAL_S is over. ``clock`` counts
    seconds. Empty for a sink that does not count its missed changes."""

    def __init__(self, sink: Sink, transformation: Transformation, clock: Callable[[], float] = time.monotonic) -> None:
        self._missed: Callable[[], Sequence[MissedChanges]] = sink.missed if isinstance(sink, CountingSink) else tuple
        self._transformation = transformation
        self._clock = clock
        self._logged: dict[tuple[int, tuple[str, str]], _Logged] = {}
        self._noted: Sequence[MissedChanges] = ()

    def begin(self) -> Sequence[MissedChanges]:
        """Returns the sink's counts so far, which an earlier process logged: only later ones are logged."""
        self._noted = self._missed()
        self._logged = {(each.oid, each.place): _Logged(each.changes, self._clock() - LOG_INTERVAL_S) for each in self._noted}
        return self._noted

    def note(self, ownership: Ownership) -> Sequence[MissedChanges]:
        """Returns the sink's counts. Most batches miss nothing: then it is the same list as before."""
        missed = self._missed()
        if missed is not self._noted:
            self._noted = missed
            self._log(missed, ownership)
        return missed

    def _log(self, missed: Sequence[MissedChanges], ownership: Ownership) -> None:
        for each in missed:
            before = self._logged.get((each.oid, each.place))
            if before is not None and (each.changes <= before.changes or self._clock() - before.at < LOG_INTERVAL_S):
                continue
            self._logged[each.oid, each.place] = _Logged(each.changes, self._clock())
            self._say(each, is_copied=ownership.is_copied(each.oid))

    def _say(self, missed: MissedChanges, *, is_copied: bool) -> None:
        fields = {"table": ".".join(missed.place), "changes": missed.changes, "since": missed.since}
        fields |= {"updates": missed.updates, "deletes": missed.deletes, "positions": " ".join(map(str, missed.positions))}
        if is_expected(missed, self._transformation):
            log.info("changes met no row, as they may under a filter or a route", **fields)
        elif is_copied:
            remedy = missed_remedy(".".join(missed.source), _first(missed))
            log.warning("changes met no row in a table that was copied: source and target differ", **fields, remedy=remedy)
        else:
            log.warning("changes met no row at the target", **fields)


def _first(missed: MissedChanges) -> str:
    """Returns the position of the first miss, "" if unknown."""
    return str(missed.positions[0]) if missed.positions else ""


def is_expected(missed: MissedChanges, transformation: Transformation) -> bool:
    """Returns whether the misses may be correct, wherever the rows came from."""
    return transformation.may_leave_rows_out(missed.oid, missed.source)


def report_missed(missed: Sequence[MissedChanges], transformation: Transformation) -> tuple[MissedReport, ...]:
    """Returns the misses for the worker's record: the most important first, REPORTED_TABLES at most."""
    judged = sorted(((is_expected(each, transformation), -each.changes, each) for each in missed), key=itemgetter(0, 1))
    return tuple(
        MissedReport(each.oid, ".".join(each.place), each.changes, each.since, expected, each.updates, each.deletes, _first(each))
        for expected, _, each in judged[:REPORTED_TABLES]
    )
