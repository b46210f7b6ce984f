"""The answers of a batch's tasks, which the driver reads as receipts.

Each answer names the part of the stream that it covers, so that the driver proves before it commits that nothing is
missing or doubled. Sequences alone do not prove it: a broker that lost its newest messages reuses their sequences. So
an answer also names the change before its first message and the last change of its last one (``MessageChain``).

An answer without a body covers messages without a receipt (chunks of a message that began in another partition). Any
may bring a ``report`` (``TaskReport``) of changes that are not applied. An ``error`` is why the task stopped: an
exception raised in a task reaches the driver as text inside a Java stack trace, after Spark has retried the task, so
errors raised on purpose travel as data, and the driver raises the same error again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import orjson

from pgsluice.shared import errors
from pgsluice.shared.errors import Cause, HistoryError, MissingMessagesError, PgsluiceError, TerminalError, TransientError
from pgsluice.shared.wire.position import Anchor, format_lsn
from pgsluice.worker.dead_letters.task_report import TaskReport
from pgsluice.worker.metrics.batch_figures import TaskFigures
from pgsluice.worker.sinks.sink import Applied, Lane, Receipt

_CLASSES = {each.__name__: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PgsluiceError)}
"""Errors that keep their class on the way from a task to the driver."""


class Covered(NamedTuple):
    """The part of a stream that an answer covers: nothing by default. ``after`` and ``anchor`` belong to its first and
    its last message, None where it covers none or an earlier version published them."""

    lane: Lane
    first_sequence: int = 0
    last_sequence: int = 0
    changes: int = 0
    commit_lsn: int = 0
    committed_at: int = 0
    after: str | None = None
    anchor: str | None = None


class TaskAnswer(NamedTuple):
    """A task's answer about a part of its messages. Picklable."""

    covered: Covered
    body: bytes | None = None
    report: bytes | None = None
    error: bytes | None = None
    figures: TaskFigures | None = None
    """Figures of the whole task, with its last answer, when they are wanted."""


def receipt_answer(covered: Covered, body: bytes | None, report: TaskReport, figures: TaskFigures | None = None) -> TaskAnswer:
    return TaskAnswer(covered, body, report.encode(), figures=figures)


def error_answer(covered: Covered, error: PgsluiceError) -> TaskAnswer:
    return TaskAnswer(covered, error=encode_error(error))


def encode_error(error: PgsluiceError) -> bytes:
    content: dict[str, str | int] = {"class": _known_class(type(error)).__name__, "fact": error.fact, "remedy": error.remedy}
    if isinstance(error, MissingMessagesError):
        content["next_sequence"] = error.next_sequence
    return orjson.dumps(content | ({"cause": error.cause} if isinstance(error, TransientError) else {}))


def decode_error(carried: bytes) -> PgsluiceError:
    """Returns the error that ``encode_error`` was given, of the same class; a sink's own class becomes the one that it
    derives from."""
    content = orjson.loads(carried)
    error = _CLASSES[content["class"]](content["fact"], content["remedy"])
    if isinstance(error, TransientError):
        error.cause = Cause(content["cause"])
    if isinstance(error, MissingMessagesError):
        error.next_sequence = content["next_sequence"]
    return error


def _known_class(error_class: type[PgsluiceError]) -> type[PgsluiceError]:
    return next(known for known in error_class.__mro__ if _CLASSES.get(known.__name__) is known)


def read_reports(answers: Iterable[TaskAnswer]) -> list[TaskReport]:
    """Returns the reports in ``answers``. Raises the error that a task sent."""
    reports = []
    for answer in answers:
        if answer.error is not None:
            raise decode_error(answer.error)
        if answer.report is not None:
            reports.append(TaskReport.decode(answer.report))
    return reports


def read_receipts(
    answers: Iterable[TaskAnswer],
    applied: Applied,
    rules: str = "",
    before: Anchor | None = None,
    cohort: frozenset[int] = frozenset(),
) -> Iterator[Receipt]:
    """Yields the receipts in ``answers`` (in partition order), which must continue one of the lanes after ``applied``.
    ``rules`` is the hash of the tasks' transformation; ``before`` is as in ``MessageChain``; ``cohort`` are the
    left-out tables of each receipt.

    Raises the error that a task sent, TerminalError when the answers leave a gap or overlap, or HistoryError when their
    messages are not the following ones. Answers without a body extend the receipt before them, or the one after when
    they come first.
    """
    chain = MessageChain(applied, before)
    pending: Receipt | None = None
    begin = changes = 0
    for answer in answers:
        if answer.error is not None:
            raise decode_error(answer.error)
        covered = answer.covered
        chain.follow(covered)
        begin = begin or covered.first_sequence
        if answer.body is None:
            changes += covered.changes
            if pending is not None:
                pending = replace(pending, last_sequence=covered.last_sequence)
            continue
        if pending is not None:
            yield pending
            begin = pending.last_sequence + 1
        pending = Receipt(
            begin,
            covered.last_sequence,
            covered.changes + changes,
            covered.commit_lsn,
            covered.committed_at,
            answer.body,
            lane=covered.lane,
            rules=rules,
            cohort=cohort,
        )
        changes = 0
    if pending is not None:
        yield pending


class MessageChain:
    """Proves that the answers of a batch continue after ``applied``, and after each other, by sequences and by anchors.
    ``before`` is the anchor that the first message must name as before it, when that is not where ``applied`` is."""

    def __init__(self, applied: Applied, before: Anchor | None = None) -> None:
        self._applied = applied
        self._before = before
        self._is_first = True
        self._expected = 0

    def follow(self, covered: Covered) -> None:
        """Raises TerminalError for a gap or an overlap, HistoryError for other messages. An answer may cover no message, and an
        earlier version's messages name none."""
        self._check_sequence(covered)
        if not covered.changes:
            return
        after = _anchor(covered.after)
        if self._before is not None:
            check_follows(covered.first_sequence, after, self._before)
        elif self._is_first and after is not None:
            self._check_first(covered, after)
        self._is_first = False
        self._before = _anchor(covered.anchor)

    def _check_sequence(self, covered: Covered) -> None:
        expected = self._expected or self._applied.sequence_in(covered.lane) + 1
        if covered.first_sequence != expected:
            raise TerminalError(
                f"a batch covers message {covered.first_sequence} where {expected} was expected",
                "this is a defect of pgsluice; nothing was applied, please report it",
            )
        self._expected = covered.last_sequence + 1

    def _check_first(self, covered: Covered, after: Anchor) -> None:
        applied = (covered.lane is Lane.CATCH_UP and self._applied.catch_up) or self._applied
        if (after.position.commit_lsn, after.committed_at) != (applied.commit_lsn, applied.committed_at):
            raise HistoryError(
                f"message {covered.first_sequence} of the change stream follows the change at {after.position}, but the "
                f"applied changes end with the transaction at {format_lsn(applied.commit_lsn)}: the stream was replaced or lost "
                "messages",
                "start the worker again: it finds its position in the stream, or reports the cause",
            )


def check_follows(sequence: int, after: Anchor | None, before: Anchor) -> None:
    """Raises HistoryError when the message at ``sequence`` names another message before it than the one that ends at ``before``.
    Messages of earlier versions name none."""
    if after is not None and after != before:
        raise HistoryError(
            f"message {sequence} of the change stream follows the change at {after.position}, but the messages before it "
            f"end at {before.position}: the stream was replaced or lost messages",
            "start the worker again: it finds its position in the stream, or reports the cause",
        )


def _anchor(text: str | None) -> Anchor | None:
    return None if text is None else Anchor.parse(text)
