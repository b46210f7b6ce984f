"""The definitions of one worker, in the driver: whether they may be applied, held columns, and the outcomes.

Before a batch that holds definitions is written, they are judged (``meet``): one that needs an operator stops the
worker before anything of its transaction is applied, unless it was accepted. While the batch is committed a sink may
get them (``in_place``), and then their outcomes are noted (``settle``). A batch without definitions costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.rules.transformation import Transformation
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.definition_log import KEPT, DefinitionOutcome, NotedOutcome, Outcomes, load_outcomes, store_outcomes
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.definitions.definition_decisions import HeldColumn, accepted_by, load_held, store_held
from pgsluice.shared.definitions.difference import key_of, primary_key_of
from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.definition import DefinedColumn, TableDefined, TablePublished
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import alters, concerned
from pgsluice.worker.definitions.arrivals import Arrival, given_in_place
from pgsluice.worker.definitions.judgement import held_key_error, judge, new_columns_error, refused_error
from pgsluice.worker.definitions.policy import Policies, kinds_of
from pgsluice.worker.definitions.refusal import RefusedDefinitionError
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.abilities import AcceptingSink, AlteredSink, DefinedSink
from pgsluice.worker.sinks.sink import DefinitionUse, Receipt, Sink

PASS, HOLD = "pass", "hold"
"""Values of ``new-columns``, in addition to "stop"."""

DECISIONS_INTERVAL_S = 5.0
"""Interval at which a worker that holds columns checks for decisions."""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Met:
    arrival: Arrival
    outcomes: tuple[DefinitionOutcome, ...]

    @property
    def is_given(self) -> bool:
        """Returns whether a sink that alters its destination gets it."""
        return DefinitionOutcome.APPLIED in self.outcomes


class WorkerDefinitions:
    """Calls block, and raise TransientError when NATS does not answer."""

    def __init__(self, loop: EventLoopThread, bucket: StateBucket, settings: WorkerSettings, sink: Sink) -> None:
        self._loop = loop
        self._bucket = bucket
        self._worker = settings.name
        self._policies = Policies.parse(settings.ddl, settings.ddl_policy)
        self._new_columns = settings.new_columns
        self._give = sink.apply_ddl if isinstance(sink, AlteredSink) else None
        self._accept = sink.accept if isinstance(sink, AcceptingSink) else None
        self._use = _use_of(sink)
        self._transformation = Transformation()
        self._accepted: Collection[Position] = ()
        self._held: dict[tuple[int, int], HeldColumn] = {}
        self._columns: dict[int, frozenset[int]] = {}
        """``_held`` by table; shared with the transformation."""
        self._outcomes: Outcomes | None = None
        self._met: Sequence[_Met] = ()
        self._looked_at = time.monotonic()
        self._has_told = False

    def begin(self, transformation: Transformation) -> Transformation:
        """Returns ``transformation``, which from now on leaves out what is held."""
        self._accepted = self._loop.run(accepted_by(self._bucket, self._worker))
        held = self._loop.run(load_held(self._bucket, self._worker))
        if self._new_columns != PASS:
            self._hold(held)
            self._release()
        elif held:
            self._loop.run(store_held(self._bucket, self._worker, ()))
        self._transformation = replace(transformation, held=self._columns)
        return self._transformation

    def judge(self, arrivals: Iterable[Arrival]) -> None:
        """Judges the definitions of the batch that will be written now. Raises TerminalError when an operator must act
        first."""
        self._met = [self._judged(arrival) for arrival in arrivals]

    def in_place(self, receipts: Iterable[Receipt]) -> Iterable[Receipt]:
        """Returns ``receipts`` of that batch, for the sink's ``commit``, which is given definitions on the way."""
        if self._met and self._accept is not None:
            self._accept({met.arrival.definition for met in self._met if DefinitionOutcome.ACCEPTED in met.outcomes})
        if not self._met or self._give is None:
            return receipts
        return given_in_place(receipts, [met.arrival for met in self._met if met.is_given], self._give)

    def refused(self, error: RefusedDefinitionError) -> TerminalError:
        """Notes that the worker stops for the refused definition. Returns the error with a remedy; ``error`` itself if
        the batch has no such definition."""
        arrival = next((met.arrival for met in self._met if met.arrival.definition == error.definition), None)
        return error if arrival is None else self._stopped(arrival, refused_error(arrival, error))

    def settle(self) -> None:
        """Notes the outcomes after the batch is applied. Does not fail: they are for readers."""
        met, self._met = [each for each in self._met if alters(each.arrival.definition)], ()
        if met:
            self._tell_of_passed_over(met)
            self._note({each.arrival.position: each.outcomes for each in met})

    @property
    def may_be_decided(self) -> bool:
        """Returns whether to check for decisions: a column waits for one, and the last check is old enough."""
        return bool(self._held) and time.monotonic() - self._looked_at >= DECISIONS_INTERVAL_S

    def look_for_decisions(self) -> None:
        """Releases columns that an operator decided about. Must not run while a batch does."""
        self._looked_at = time.monotonic()
        self._accepted = self._loop.run(accepted_by(self._bucket, self._worker))
        self._release()

    def _judged(self, arrival: Arrival) -> _Met:
        if arrival.is_copied:
            passed_on = (DefinitionOutcome.PASSED_ON,) if self._use is DefinitionUse.PASSES_ON else ()
            return _Met(arrival, (DefinitionOutcome.RECOPIED, *passed_on))
        held = self._check_new_columns(arrival)
        self._check_held_key(arrival)
        left = replace(arrival, definition=self._transformation.without_held(arrival.definition))
        if arrival.position in self._accepted and not self._lets_pass(arrival):
            return _Met(left, (DefinitionOutcome.ACCEPTED,))
        judgement = judge(left, self._policies, self._use)
        if judgement.stop is not None:
            if not self._is_accepted(arrival.position):
                raise self._stopped(arrival, judgement.stop)
            return _Met(left, (DefinitionOutcome.ACCEPTED,))
        if not held:
            return _Met(left, judgement.outcomes)
        return _Met(
            left, (*judgement.outcomes, DefinitionOutcome.HELD) if kinds_of(left.definition) else (DefinitionOutcome.HELD,)
        )

    def _check_new_columns(self, arrival: Arrival) -> Sequence[DefinedColumn]:
        """Returns columns that are held from now on. Raises TerminalError when an operator must decide first."""
        about = concerned(arrival.definition.event)
        if self._new_columns == PASS or about is None:
            return ()
        found = self._transformation.unguarded(arrival.definition)
        if not found or self._is_accepted(arrival.position):
            return ()
        if self._new_columns != HOLD:
            raise self._stopped(arrival, new_columns_error(arrival, found))
        table, position = f"{about.schema}.{about.name}", str(arrival.position)
        news = [HeldColumn(about.oid, column.number, table, column.name, position) for column in found]
        if not all((each.oid, each.number) in self._held for each in news):
            self._hold([*self._held.values(), *news])
            self._loop.run(store_held(self._bucket, self._worker, self._held.values()))
            log.warning(
                "a new column is left out of rows until an operator decides, for the table's rules hide others",
                table=table,
                columns=", ".join(column.name for column in found),
                command=f"pgsluice ddl accept {position}",
            )
        return found

    def _lets_pass(self, arrival: Arrival) -> bool:
        """Returns whether accepting the definition only releases its new columns."""
        return self._new_columns != PASS and bool(self._transformation.unguarded(arrival.definition))

    def _check_held_key(self, arrival: Arrival) -> None:
        event = arrival.definition.event
        # a single kind: looks for the keys of tables, which nothing else has
        if self._held and isinstance(event, TableDefined | TablePublished):
            held = self._columns.get(event.table.oid, frozenset())
            if held.intersection((*primary_key_of(event.table), *key_of(event.table))):
                raise self._stopped(arrival, held_key_error(arrival))

    def _is_accepted(self, position: Position) -> bool:
        """Reads decisions once more before it returns False, which ends the worker."""
        if position not in self._accepted:
            self._accepted = self._loop.run(accepted_by(self._bucket, self._worker))
        return position in self._accepted

    def _stopped(self, arrival: Arrival, error: TerminalError) -> TerminalError:
        self._note({arrival.position: (DefinitionOutcome.STOPPED,)})
        return error

    def _hold(self, columns: Iterable[HeldColumn]) -> None:
        self._held = {(each.oid, each.number): each for each in columns}
        self._columns.clear()
        for oid, number in self._held:
            self._columns[oid] = self._columns.get(oid, frozenset()) | {number}

    def _release(self) -> None:
        left = [each for each in self._held.values() if Position.parse(each.position) not in self._accepted]
        released = len(self._held) - len(left)
        if released:
            self._hold(left)
            self._loop.run(store_held(self._bucket, self._worker, left))
            log.info("new columns pass from now on, as an operator decided", columns=released)

    def _note(self, news: dict[Position, tuple[DefinitionOutcome, ...]]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            if self._outcomes is None:
                self._outcomes = self._loop.run(load_outcomes(self._bucket, self._worker))
            noted = {position: NotedOutcome(outcomes, at) for position, outcomes in news.items()}
            self._outcomes = dict(sorted((self._outcomes | noted).items())[-KEPT:])
            self._loop.run(store_outcomes(self._bucket, self._worker, self._outcomes))
        except TransientError as error:
            log.warning(
                "the results of schema changes could not be recorded; the next record contains them too", reason=str(error)
            )

    def _tell_of_passed_over(self, met: Sequence[_Met]) -> None:
        passed_over = sum(DefinitionOutcome.PASSED_OVER in each.outcomes for each in met)
        if passed_over and not self._has_told:
            self._has_told = True
            log.warning("this sink ignores schema changes; 'pgsluice ddl log' shows them", definitions=passed_over)


def _use_of(sink: Sink) -> DefinitionUse:
    if isinstance(sink, AlteredSink):
        return DefinitionUse.ALTERS
    return sink.definitions if isinstance(sink, DefinedSink) else DefinitionUse.PASSES_OVER
