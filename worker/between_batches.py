"""The worker's duties between batches: an ordered list; each has its turn about twice a second, or once at rest.

A duty that fails for now is tried again at its next turn, and does not delay the others. A new one is a method here and
a line in the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.retrying import RetryNews
from pgsluice.shared.spark.executors import ExecutorWatch
from pgsluice.worker.batches.batch_loop import BatchLoop
from pgsluice.worker.running import RunningWorker
from pgsluice.worker.sinks.abilities import TickingSink
from pgsluice.worker.stopping import POLL_INTERVAL_S, WorkerStopping

RESTS_AFTER_S = 10.0  # without a batch
RESTING_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """``at_end``: it has a last turn when the batches have ended on their own. ``is_check``: its error ends the worker."""

    name: str
    do: Callable[[], None]
    at_end: bool = False
    is_check: bool = False
    news: RetryNews = field(default_factory=RetryNews)


class BetweenBatches:
    """The duties of one worker while ``batches`` applies them."""

    def __init__(self, worker: RunningWorker, batches: BatchLoop) -> None:
        self._worker = worker
        self._batches = batches
        self._executor_watch = ExecutorWatch()
        self._applied, self._applied_at = batches.applied, time.monotonic()
        self._duties = (
            Duty("finish a copy", self._finish_copy, at_end=True),
            Duty("replay dead letters", self._replay_letters, at_end=True),
            Duty("look for decisions about new columns", self._look_for_decisions),
            Duty("let the sink tick", self._tick),
            Duty("check the streams", self._check_streams, is_check=True),
            Duty("check Spark", worker.spark.check_alive, is_check=True),
            Duty("look for executors", self._look_for_executors),
        )

    def follow(self, stopping: WorkerStopping) -> None:
        """Returns when the batches end on their own. Raises StopRequested, or the PgsluiceError that ended them or a
        duty."""
        stopping.check()
        while not self._batches.ended(self._pause_s()):
            for duty in self._duties:
                self._take_turn(duty)
            stopping.check()
        if self._worker.target is None:
            # no cause: a part of the worker ended
            raise TransientError("the batches ended unexpectedly", "start the worker again")
        for duty in self._duties:
            if duty.at_end:
                duty.do()

    def _pause_s(self) -> float:
        applied, now = self._batches.applied, time.monotonic()
        if applied != self._applied:
            self._applied, self._applied_at = applied, now
        return POLL_INTERVAL_S if now - self._applied_at < RESTS_AFTER_S else RESTING_INTERVAL_S

    def _take_turn(self, duty: Duty) -> None:
        try:
            duty.do()
        except TransientError as error:
            if duty.is_check:
                raise
            if duty.news.is_due(error):
                log.warning("the work between batches failed, trying again", duty=duty.name, reason=str(error))

    def _finish_copy(self) -> None:
        """Does nothing unless a copy ended."""
        copy_end, applied = self._worker.copy_end, self._batches.applied
        if not copy_end.may_be_reached(applied) or not self._worker.loop.run(copy_end.is_reached(applied)):
            return
        if applied.catch_up is not None:
            self._worker.sink.finish_copy()  # other tables continue meanwhile
        elif not self._batches.between_batches(self._worker.sink.finish_copy, POLL_INTERVAL_S):
            return
        copy_end.note_handled(applied)
        self._batches.look_again()

    def _replay_letters(self) -> None:
        """Does nothing while there are no dead letters."""
        if self._worker.registry.letters:
            self._batches.between_batches(lambda: self._worker.replay.run(self._batches.applied), POLL_INTERVAL_S)

    def _look_for_decisions(self) -> None:
        """Does nothing while no column is held."""
        definitions = self._worker.definitions
        if definitions.may_be_decided:
            self._batches.between_batches(definitions.look_for_decisions, POLL_INTERVAL_S)

    def _tick(self) -> None:
        if isinstance(self._worker.sink, TickingSink):
            self._worker.sink.tick()
        self._worker.note_held()

    def _check_streams(self) -> None:
        self._worker.streams.check_now_and_then(self._batches.applied)

    def _look_for_executors(self) -> None:
        self._executor_watch.look(self._worker.spark)
