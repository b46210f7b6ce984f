"""Sends operations until the server has taken or refused each of them, in requests of bounded size, several at a time.

What the server cannot take now is sent again alone, after 1, 2, 4 … seconds. In a task that goes on for PATIENCE_S: then the
batch fails for a passing cause, the worker says what it waits for, and the batch comes again as a whole, which changes nothing
in what was taken already.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, assert_never

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.process.retrying import Backoff, Pauses
from pgsluice.worker.sinks.search.bulk import ItemAnswer, Operation, Outcome, operation_bytes, send_bulk
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.server_connection import BLOCK_REMEDY, ConnectionPool

PATIENCE_S = 20.0
PAUSES = Pauses(1.0, 30.0)
WHOLE_TABLE_REFUSALS = 100
"""So many documents of an index refused, and none taken: something is wrong with the index and not with them."""


class Refused(NamedTuple):
    operation: Operation
    answer: ItemAnswer


class Tally:
    """What became of operations: indexed, deleted, stale, retried, dead; and how long requests took."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.bulk_seconds: list[float] = []
        self.taken: Counter[str] = Counter()
        """Of each target, as opposed to refused."""
        self.refused: list[Refused] = []
        self.missing: list[Operation] = []
        """Deletes that found nothing."""

    def note(self, operation: Operation, answer: ItemAnswer) -> None:
        match answer.outcome:
            case Outcome.DONE:
                self.outcomes["indexed" if operation.document is not None else "deleted"] += 1
                if not answer.is_found:
                    self.missing.append(operation)
            case Outcome.STALE:
                self.outcomes["stale"] += 1
            case Outcome.REFUSED:
                self.outcomes["dead"] += 1
                self.refused.append(Refused(operation, answer))
                self._check_table(operation, answer)
                return
            case Outcome.THROTTLED | Outcome.BLOCKED | Outcome.WRONG:
                raise AssertionError("these are not final")
            case unreachable:
                assert_never(unreachable)
        self.taken[operation.target] += 1

    def _check_table(self, operation: Operation, answer: ItemAnswer) -> None:
        """All documents of one index are refused only when the index does not fit them. Raises TerminalError."""
        target = operation.target
        if self.taken[target] or sum(each.operation.target == target for each in self.refused) < WHOLE_TABLE_REFUSALS:
            return
        raise TerminalError(
            f"the search server refuses every document of index '{target.removesuffix('-write')}' "
            f"({answer.error or answer.status})",
            "compare the index's mapping with the table; see the server's log for the field. Nothing was set aside",
        )


class BulkDelivery:
    """For one thread, but for ``halt``. ``pool`` has the connections; ``threads`` make the requests."""

    def __init__(
        self,
        settings: SearchSinkSettings,
        pool: ConnectionPool,
        threads: ThreadPoolExecutor,
        *,
        patience_s: float = PATIENCE_S,
        pauses: Pauses = PAUSES,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._threads = threads
        self._patience_s = patience_s
        self._pauses = pauses
        self._halted = threading.Event()
        self.tally = Tally()

    def deliver(self, operations: Sequence[Operation]) -> None:
        """Of no document more than one: they arrive in any order. Raises TransientError when patience is at its end, and
        TerminalError; what is refused is in ``tally``."""
        backoff = Backoff(self._pauses)
        ends_at = time.monotonic() + self._patience_s
        waiting = operations
        while waiting:
            waiting, trouble = self._attempt(waiting)
            if trouble is None:
                return
            self.tally.outcomes["retried"] += len(waiting)
            pause_s = backoff.next_pause_s()
            if time.monotonic() + pause_s > ends_at or self._halted.wait(pause_s):
                raise trouble

    def halt(self) -> None:
        """From any thread and for good: nothing is waited for any more."""
        self._halted.set()
        self._pool.abort()

    def _attempt(self, operations: Sequence[Operation]) -> tuple[list[Operation], TransientError | None]:
        """What has to be sent again, and why."""
        sent = [(chunk, self._threads.submit(self._send, chunk)) for chunk in chunks(operations, self._settings.batch_bytes)]
        waiting: list[Operation] = []
        trouble: TransientError | None = None
        failure: BaseException | None = None
        for chunk, answered in sent:
            try:
                again, why = self._judge(chunk, answered)
            except TerminalError as error:
                failure = failure or error
                continue
            waiting += again
            trouble = why or trouble
        if failure is not None:
            raise failure
        return waiting, trouble

    def _judge(
        self, chunk: Sequence[Operation], answered: Future[list[ItemAnswer]]
    ) -> tuple[Sequence[Operation], TransientError | None]:
        try:
            answers = answered.result()
        except TransientError as error:
            return chunk, error
        waiting, trouble = [], None
        for operation, answer in zip(chunk, answers, strict=True):
            match answer.outcome:
                case Outcome.DONE | Outcome.STALE | Outcome.REFUSED:
                    self.tally.note(operation, answer)
                case Outcome.THROTTLED | Outcome.BLOCKED:
                    waiting.append(operation)
                    trouble = _trouble(operation, answer)
                case Outcome.WRONG:
                    raise _wrong(operation, answer)
                case unreachable:
                    assert_never(unreachable)
        return waiting, trouble

    def _send(self, chunk: Sequence[Operation]) -> list[ItemAnswer]:
        began_at = time.monotonic()
        try:
            return send_bulk(self._pool.mine(), chunk, wait_visible=self._settings.wait_visible)
        finally:
            self.tally.bulk_seconds.append(time.monotonic() - began_at)


def chunks(operations: Sequence[Operation], most_bytes: int) -> Iterator[Sequence[Operation]]:
    """Requests of at most so many bytes, unless one operation has more."""
    first, size = 0, 0
    for i, operation in enumerate(operations):
        added = operation_bytes(operation)
        if size and size + added > most_bytes:
            yield operations[first:i]
            first, size = i, 0
        size += added
    if first < len(operations):
        yield operations[first:]


def _trouble(operation: Operation, answer: ItemAnswer) -> TransientError:
    index = operation.target.removesuffix("-write")
    if answer.outcome is Outcome.BLOCKED:
        return TransientError(f"index '{index}' may not be written now ({answer.error})", BLOCK_REMEDY, Cause.DISK_FULL)
    return TransientError(
        f"the search server does not take documents of index '{index}' now ({answer.error or answer.status})",
        "it has too much to do: they are sent again",
        Cause.THROTTLED,
    )


def _wrong(operation: Operation, answer: ItemAnswer) -> TerminalError:
    fact = f"the search server answered with status {answer.status} ({answer.error}) for '{operation.target}'"
    if answer.status == 404:
        return TerminalError(fact, "the index was removed while it was written: start the worker again with a new copy")
    return TerminalError(fact, "check what the user or API key may do with this index")
