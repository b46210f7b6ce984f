"""Replays dead letters: the worker applies the requested ones, between two batches.

They go through a separate sink, which writes to the same destination under the name ``<worker>.replay``. Its position
counts in the dead-letter stream: before a dead letter is applied it gets a place there, newer than all others. So a
sink that is exactly once is that here too: the dead letters and that position become durable together, and dead letters
that a crash left in the stream are known to be applied when that position has passed their places. The others were not
applied, and get another place.

The dead letters of a row are one queue. Whatever users request: a dead letter is applied with all earlier ones of its
rows or after them. One that is refused again gets its new reason, and waits for an operator with the later ones of its
rows.
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
from pgsluice.worker.dead_letters.blocked_letters import BlockedLetters
from pgsluice.worker.dead_letters.letter import changes_of
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.rejection import BEHIND, RejectedChanges, Rejection, WriteAgain, refusal_of
from pgsluice.worker.sinks.sink import Applied, Lane, Partition, Receipt, Sink

ATTEMPTS = 3  # then the next check of the queue tries again
log = telemetry.logger(__name__)


class Replay:
    """``new_sink`` makes a sink under ``names.replay_name``, not open. Dead letters hold the source's changes, so they
    go through the current rules and routes."""

    def __init__(self, registry: DeadLetterRegistry, transformation: Transformation, new_sink: Callable[[], Sink]) -> None:
        self._registry = registry
        self._transformation = transformation
        self._new_sink = new_sink

    def run(self, applied: Applied) -> None:
        """Applies requested dead letters, if the worker itself has passed their positions (``applied``). Must not run
        while a batch does. Raises PgsluiceError; unapplied ones stay requested then."""
        self._registry.refresh()
        begun = [stored for stored in self._registry.letters if stored.places]
        if not begun and not self._asked(applied):
            return
        sink = self._new_sink()
        try:
            self._end_interrupted(begun, sink.open())
            self._apply(sink, self._registry.place(self._asked(applied)))
        finally:
            sink.close()

    def _asked(self, applied: Applied) -> list[StoredLetter]:
        """Returns the dead letters that can be applied now, by position. The worker may publish a dead letter before it
        has applied its batch; until then it waits, and so do the ones after it."""
        letters = self._registry.letters
        asked = [stored for stored in letters if stored.is_queued]
        if not asked:
            return []
        blocked = BlockedLetters(letters)
        wanted = blocked.with_earlier(asked)
        return blocked.split(wanted, [stored for stored in wanted if not _is_passed(stored.letter, applied)])[0]

    def _end_interrupted(self, begun: Sequence[StoredLetter], replayed: Applied) -> None:
        """Ends a replay that was interrupted: removes applied dead letters, and takes the places from the others."""
        reached = replayed.sequence if replayed.stream_created == self._registry.stream_created else 0
        self._registry.withdraw([stored for stored in begun if stored.places[0] > reached])
        self._registry.remove([stored for stored in begun if stored.places[0] <= reached])

    def _apply(self, sink: Sink, letters: Sequence[StoredLetter]) -> None:
        """Applies ``letters`` in pieces of fewer than MOST_REFUSALS: so each dead letter gets its own reason for a
        refusal, and the destination is not considered at fault (``refusals``) because all of them are refused for their
        content."""
        failures = replayed = 0
        while letters:
            piece = letters[: MOST_REFUSALS - 1]
            try:
                messages = self._transformed([changes_of(stored.letter, stored.places[0]) for stored in piece])
                sink.commit(_receipts(sink, messages, self._transformation), self._registry.stream_created)
            except RejectedChanges as rejected:
                letters = self._send_back(letters, rejected.rejections)
                continue
            except WriteAgain:
                continue
            except TransientError:  # a sink may need a second pass after it could not write all as a whole
                failures += 1
                if failures == ATTEMPTS:
                    raise
                continue
            self._registry.remove(piece)
            letters, failures, replayed = letters[len(piece) :], 0, replayed + len(piece)
        if replayed:
            log.info("dead letters were replayed", letters=replayed)

    def _transformed(self, messages: Sequence[MessageChanges]) -> list[MessageChanges]:
        """Raises RejectedChanges for changes that a rule rejects."""
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

    def _send_back(self, letters: Sequence[StoredLetter], rejections: Iterable[Rejection]) -> list[StoredLetter]:
        """Returns the ``letters`` that can still be applied. Withdraws requests that wait for a refused one: else they
        would retry it."""
        reasons = {rejection.position: rejection.reason for rejection in rejections}
        known = self._registry.letters
        asked = [stored for stored in known if stored.is_queued or stored.places]
        refused = [stored for stored in letters if stored.letter.position in reasons]
        left, waiting = BlockedLetters(known).split(asked, refused)
        for stored in waiting:
            reason = reasons.get(stored.letter.position, f"{BEHIND} a dead letter of the same row that was refused again")
            self._registry.send_back(stored, stored.letter.refused_again(reason))
        if waiting:
            log.warning("dead letters were refused again", letters=len(waiting), reason=next(iter(reasons.values())))
        return [stored for stored in left if stored.places]


def _is_passed(letter: DeadLetter, applied: Applied) -> bool:
    """Returns whether the worker has applied the batch of the dead letter, which may be published earlier."""
    return letter.sequence <= applied.sequence_in(Lane.COPIED if letter.is_copied else Lane.CATCH_UP)


def _receipts(sink: Sink, messages: Sequence[MessageChanges], transformation: Transformation) -> Iterator[Receipt]:
    """Yields the receipts of the dead letters' changes, which are one partition and went through ``transformation``."""
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
