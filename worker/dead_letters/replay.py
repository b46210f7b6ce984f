"""Replaying dead letters: the worker applies those that it was asked to apply, between two batches.

They go through a sink of their own, which writes to the same destination under the name ``<worker>.replay``. Its position counts
in the dead-letter stream. So a sink that is exactly once is that here too: the letters and that position become durable together,
and letters that a crash left in the stream behind it are known to be applied.

What is refused again goes back to the dead letters with its new reason, and the later letters of the same row with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pgsluice.rules.transformation import Transformation
from pgsluice.shared import telemetry
from pgsluice.shared.broker.dead_letter_stream import StoredLetter
from pgsluice.shared.errors import TransientError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.worker.batches.unreadable_rows import unreadable_changes
from pgsluice.worker.dead_letters.exclusions import Row, touched_rows
from pgsluice.worker.dead_letters.letter import changes_of
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.rejection import BEHIND, RejectedChanges, Rejection, WriteAgain, refusal_of
from pgsluice.worker.sinks.sink import Applied, Lane, Partition, Receipt, Sink

ATTEMPTS = 3  # then the next look at the queue tries again
log = telemetry.logger(__name__)


class Replay:
    """``new_sink`` makes a sink under ``names.replay_name``, not open. Letters hold what the source sent, so they go through the
    rules and routes that are in force now."""

    def __init__(self, registry: DeadLetterRegistry, transformation: Transformation, new_sink: Callable[[], Sink]) -> None:
        self._registry = registry
        self._transformation = transformation
        self._new_sink = new_sink

    def run(self, applied: Applied) -> None:
        """Applies what is asked for, as far as the worker itself has come to where the letters are from (``applied``). Must not
        run while a batch does. Raises PgsluiceError; what was not applied is still asked for then."""
        self._registry.refresh()
        queued = [stored for stored in self._registry.letters if stored.is_queued and _is_passed(stored.letter, applied)]
        if not queued:
            return
        sink = self._new_sink()
        try:
            replayed = sink.open()
            same_stream = replayed.stream_created == self._registry.stream_created
            done = [stored for stored in queued if same_stream and stored.last_sequence <= replayed.sequence]
            self._registry.remove(done)
            rest = [stored for stored in queued if stored not in done]
            self._apply(sink, sorted(rest, key=lambda stored: stored.last_sequence))
        finally:
            sink.close()

    def _apply(self, sink: Sink, letters: Sequence[StoredLetter]) -> None:
        failures = 0
        while letters:
            try:
                messages = self._transformed([self._message(stored) for stored in letters])
                sink.commit(_receipts(sink, messages, self._transformation), self._registry.stream_created)
            except RejectedChanges as rejected:
                letters = self._send_back(letters, rejected.rejections)
                continue
            except WriteAgain:
                continue
            except TransientError:  # a sink may want a second look at what it could not take as a whole
                failures += 1
                if failures == ATTEMPTS:
                    raise
                continue
            self._registry.remove(letters)
            log.info("dead letters were replayed", letters=len(letters))
            return

    def _transformed(self, messages: Sequence[MessageChanges]) -> list[MessageChanges]:
        """Raises RejectedChanges for those that a rule rejects."""
        transformed, rejections = [], []
        for message in messages:
            rejected = unreadable_changes(message)
            if not rejected:
                changes, rejected = self._transformation.apply(message)
                transformed.append(changes)
            rejections += [Rejection.of(message, row.change_index, refusal_of(row)) for row in rejected]
        if rejections:
            raise RejectedChanges(rejections)
        return transformed

    def _message(self, stored: StoredLetter) -> MessageChanges:
        return changes_of(stored.letter, stored.last_sequence)

    def _send_back(self, letters: Sequence[StoredLetter], rejections: Iterable[Rejection]) -> list[StoredLetter]:
        """Returns the letters that can still be applied."""
        reasons = {rejection.position: rejection.reason for rejection in rejections}
        blocked: set[Row] = set()
        left, refused = [], 0
        for stored in letters:
            rows = set(touched_rows(changes_of(stored.letter, stored.last_sequence)))
            reason = reasons.get(stored.letter.position)
            if reason is None and not blocked & rows:
                left.append(stored)
                continue
            blocked |= rows
            refused += 1
            reason = reason or f"{BEHIND} a dead letter of the same row that was refused again"
            self._registry.send_back(stored, stored.letter.refused_again(reason))
        if refused:
            log.warning("dead letters were refused again", letters=refused, reason=next(iter(reasons.values())))
        return left


def _is_passed(letter: DeadLetter, applied: Applied) -> bool:
    """A letter may be published before the batch that it was taken from is applied."""
    return letter.sequence <= applied.sequence_in(Lane.COPIED if letter.is_copied else Lane.CATCH_UP)


def _receipts(sink: Sink, messages: Sequence[MessageChanges], transformation: Transformation) -> Iterator[Receipt]:
    """Those of the letters' changes, which are one partition and went through ``transformation``."""
    partition = Partition(messages[0].first_sequence, messages[-1].sequence, names=transformation.names)
    rules = transformation.hash
    taken: list[MessageChanges] = []

    def take() -> Iterator[MessageChanges]:
        for message in messages:
            taken.append(message)
            yield message

    for body in sink.writer().write(partition, take()):
        last = taken[-1].transactions[-1]
        changes = sum(message.change_count for message in taken)
        yield Receipt(taken[0].first_sequence, taken[-1].sequence, changes, last.commit_lsn, last.committed_at, body, rules=rules)
        taken.clear()
