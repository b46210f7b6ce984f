"""Sends operations until the server has taken or refused each of them, in requests of bounded size, several at a time.

Operations that the server cannot take now are sent again alone, after 1, 2, 4 … seconds, in smaller requests when there
was too much in one (``request_size``). A task continues that until nothing was taken for PATIENCE_S: then the batch
fails for a passing cause, the worker reports what it waits for, and the batch comes again as a whole, which changes
nothing in documents taken already.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple, assert_never

from pgsluice.shared.errors import Cause, MissingPrivilegeError, OverloadError, TerminalError, TransientError
from pgsluice.shared.process.retrying import Backoff, Pauses
from pgsluice.worker.sinks.search.bulk import (
    MOST_OPERATIONS,
    TOO_DEEP,
    BulkOutcome,
    ItemAnswer,
    Operation,
    SendHalves,
    operation_bytes,
    send_bulk,
)
from pgsluice.worker.sinks.search.document import indexable_part, is_too_deep
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.request_size import RequestSize
from pgsluice.worker.sinks.search.server_connection import BLOCK_REMEDY, CLOSED, ConnectionPool, rights_remedy

PATIENCE_S = 20.0
PAUSES = Pauses(1.0, 30.0)


class Refused(NamedTuple):
    operation: Operation
    answer: ItemAnswer


class Tally:
    """The results of operations: indexed, deleted, stale, retried, dead; and the time of requests."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.bulk_seconds: list[float] = []
        self.refused: list[Refused] = []
        self.taken: set[str] = set()
        """Targets that took something."""
        self.reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Reasons of refusals by target, with their numbers."""
        self.stale_deletes: set[tuple[str, bytes]] = set()
        """Target and id of deletes that met something newer: a document, or a later delete."""

    def note(self, operation: Operation, answer: ItemAnswer) -> None:
        match answer.outcome:
            case BulkOutcome.DONE:
                self.outcomes["indexed" if operation.document is not None else "deleted"] += 1
            case BulkOutcome.STALE:
                self.outcomes["stale"] += 1
                if operation.document is None:
                    self.stale_deletes.add((operation.target, operation.id))
            case BulkOutcome.REFUSED:
                self.outcomes["dead"] += 1
                self.refused.append(Refused(operation, answer))
                self.reasons[operation.target][answer.error or f"status {answer.status}"] += 1
                return
            case BulkOutcome.THROTTLED | BulkOutcome.BLOCKED | BulkOutcome.WRONG:
                raise AssertionError("these are not final")
            case unreachable:
                assert_never(unreachable)
        self.taken.add(operation.target)


def bulk_size(settings: SearchSinkSettings) -> RequestSize:
    """Returns the request size, to be kept from delivery to delivery."""
    return RequestSize(MOST_OPERATIONS, settings.batch_bytes, timeout_s=settings.timeout_s)


class BulkDelivery:
    """Use in a single thread, except ``halt``. ``pool`` has the connections; ``threads`` make the requests, which are
    of ``size``."""

    def __init__(
        self,
        settings: SearchSinkSettings,
        pool: ConnectionPool,
        threads: ThreadPoolExecutor,
        size: RequestSize,
        *,
        patience_s: float = PATIENCE_S,
        pauses: Pauses = PAUSES,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._threads = threads
        self._size = size
        self._patience_s = patience_s
        self._pauses = pauses
        self._halted = threading.Event()
        self.tally = Tally()

    def deliver(self, operations: Sequence[Operation], *, in_turn: bool = False) -> None:
        """Delivers at most one operation per document: they arrive in any sequence, but ``in_turn`` one request after
        the other. Raises TransientError when patience is at its end, and TerminalError; refused ones are in ``tally``."""
        backoff = Backoff(self._pauses)
        began_at, is_first = time.monotonic(), True
        waiting = self._fit_to_send(operations)
        while waiting:
            attempt = self._attempt(waiting, 1 if in_turn else self._settings.connections)
            waiting = attempt.waiting
            if not waiting:
                return
            assert attempt.trouble is not None
            if attempt.has_settled:
                backoff.note_success()
                began_at, is_first = time.monotonic(), True
            pause_s = backoff.next_pause_s()
            is_late = time.monotonic() + pause_s > began_at + self._patience_s
            if (is_late and not is_first) or self._halted.wait(pause_s):
                raise attempt.trouble
            is_first = False

    def _fit_to_send(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """Returns the operations without the ones that are refused here."""
        if not any(operation.document and is_too_deep(operation.document) for operation in operations):
            return operations
        fit = []
        for operation in operations:
            if operation.document and is_too_deep(operation.document):
                self.tally.note(operation, TOO_DEEP)
            else:
                fit.append(operation)
        return fit

    def halt(self) -> None:
        """Halts from any thread and for good: all waits end."""
        self._halted.set()
        self._pool.abort()

    def _attempt(self, operations: Sequence[Operation], at_once: int) -> Attempt:
        """Raises TerminalError when no request is under way any more."""
        attempt = Attempt(operations, self._size, self.tally, rights_remedy(self._settings))
        under_way: dict[Future[Answered], Request] = {}
        while True:
            while len(under_way) < at_once and (request := attempt.next_request()) is not None:
                under_way[self._threads.submit(self._send, request)] = request
            if not under_way:
                break
            for answered in wait(under_way, return_when=FIRST_COMPLETED).done:
                attempt.judge(under_way.pop(answered), answered)
        self.tally.outcomes["retried"] += attempt.retried
        if attempt.failure is not None:
            raise attempt.failure
        return attempt

    def _send(self, request: Request) -> Answered:
        began_at = time.monotonic()
        try:
            answers = send_bulk(self._pool.mine(), request.operations, wait_visible=self._settings.wait_visible)
        finally:
            took_s = time.monotonic() - began_at
            self.tally.bulk_seconds.append(took_s)
        return Answered(answers, 0.0 if self._settings.wait_visible else took_s)


class Request(NamedTuple):
    operations: Sequence[Operation]
    bytes: int


class Answered(NamedTuple):
    """``took_s`` is 0 when it is no measure of the request's size."""

    answers: list[ItemAnswer]
    took_s: float


class Attempt:
    """One attempt at sending operations. It ends early when a request as a whole gets no answer, or a refusal for now:
    later ones would fare no better, and each may take the whole time limit of a request."""

    def __init__(self, operations: Sequence[Operation], size: RequestSize, tally: Tally, rights_remedy: str) -> None:
        self._operations = operations
        self._sent = 0
        self._halves: list[Request] = []
        self._again: list[Operation] = []
        self._size = size
        self._tally = tally
        self._rights_remedy = rights_remedy
        self.trouble: TransientError | None = None
        """The reason for sending again, if any."""
        self.failure: TerminalError | None = None
        self.has_settled = False
        """True if at least one operation is taken or refused."""
        self._is_over = False

    @property
    def waiting(self) -> list[Operation]:
        """Returns operations to send again, or not sent yet; call it when every request is judged."""
        halves = [operation for request in self._halves for operation in request.operations]
        return [*self._again, *halves, *self._operations[self._sent :]]

    @property
    def retried(self) -> int:
        """Returns how many were sent, and have to be sent again."""
        return len(self._again)

    def next_request(self) -> Request | None:
        if self._is_over:
            return None
        if self._halves:
            return self._halves.pop()
        first, size, most_bytes = self._sent, 0, self._size.bytes
        end = min(len(self._operations), first + self._size.items)
        for number in range(first, end):
            added = operation_bytes(self._operations[number])
            if size and size + added > most_bytes:
                end = number
                break
            size += added
        self._sent = end
        return Request(self._operations[first:end], size) if end > first else None

    def judge(self, request: Request, answered: Future[Answered]) -> None:
        try:
            answers, took_s = answered.result()
        except SendHalves as refused:
            if refused.is_too_large:
                self._size.note_refusal(len(request.operations), request.bytes)
            self._halve(request)
        except TransientError as error:
            if isinstance(error, OverloadError):
                self._size.note_refusal(len(request.operations), request.bytes)
            self._again += request.operations
            self.trouble, self._is_over = error, True
        except TerminalError as error:
            self._fail(error)
        else:
            self._judge_items(request, answers, took_s)

    def _judge_items(self, request: Request, answers: Sequence[ItemAnswer], took_s: float) -> None:
        is_too_much, again_before = False, len(self._again)
        for operation, answer in zip(request.operations, answers, strict=True):
            document = operation.document if answer.outcome is BulkOutcome.REFUSED else None
            cut = None if document is None else indexable_part(document)
            if cut is not None:  # whatever the reason was: if it was another, the server refuses it again
                again = operation._replace(document=cut)
                self._halves.append(Request([again], operation_bytes(again)))
                continue
            match answer.outcome:
                case BulkOutcome.DONE | BulkOutcome.STALE | BulkOutcome.REFUSED:
                    self.has_settled = True
                    self._tally.note(operation, answer)
                case BulkOutcome.THROTTLED | BulkOutcome.BLOCKED:
                    self._again.append(operation)
                    self.trouble = _trouble(operation, answer)
                    is_too_much |= answer.is_overload
                case BulkOutcome.WRONG:
                    self._fail(_wrong(operation, answer, self._rights_remedy))
                    return
                case unreachable:
                    assert_never(unreachable)
        if is_too_much:
            self._size.note_refusal(len(request.operations), request.bytes)
        elif len(self._again) == again_before:  # else it may have waited for a shard, whatever its size
            self._size.note_answer(took_s, len(request.operations), request.bytes)

    def _fail(self, error: TerminalError) -> None:
        self.failure, self._is_over = self.failure or error, True

    def _halve(self, request: Request) -> None:
        half = len(request.operations) // 2
        for part in (request.operations[half:], request.operations[:half]):
            self._halves.append(Request(part, sum(map(operation_bytes, part))))


def _trouble(operation: Operation, answer: ItemAnswer) -> TransientError:
    index = operation.target.removesuffix("-write")
    if answer.outcome is BulkOutcome.BLOCKED:
        return TransientError(f"index '{index}' may not be written now ({answer.error})", BLOCK_REMEDY, Cause.DISK_FULL)
    fact = f"the search server does not take documents of index '{index}' now ({answer.error or answer.status})"
    if answer.error == CLOSED:
        return TransientError(
            f"index '{index}' is closed", "open it again: the worker continues automatically then", Cause.TARGET
        )
    if answer.is_overload:
        return TransientError(fact, "it has too much to do: they are sent again", Cause.THROTTLED)
    return TransientError(fact, "they are sent again", Cause.TARGET)


def _wrong(operation: Operation, answer: ItemAnswer, rights_remedy: str) -> TerminalError:
    reason = ": ".join(filter(None, (answer.error, answer.action)))
    fact = f"the search server answered with status {answer.status} ({reason}) for '{operation.target}'"
    if answer.status == 404:
        return TerminalError(fact, "the index was removed while it was written: start the worker again with a new copy")
    if answer.status == 400:
        return TerminalError(fact, "more than one index has this alias: take it away from the one that was restored or cloned")
    return MissingPrivilegeError(fact, rights_remedy)
