"""The rule of all sinks that decides whether the rows or the destination are at fault when rows are refused.

A destination that refuses a row and takes others refuses the row, which becomes a dead letter (``rejection``). One that
refuses everything for one reason would refuse the next batch too: the destination or the configuration is at fault, as
while a receiver is installed again, or when a trigger, a constraint or a mapping fits no row. Then nothing is set
aside: the sink raises TransientError, so the worker tries the batch again with growing pauses, reports what it waits
for (log, status, metrics, alerts), and continues automatically.

A *place* is what takes or refuses: a receiver, a table of the target, an index. It is at fault when all refusals of a
pass over a batch, or over the part of it that a task writes, have one reason, and

- it took nothing of that, and refused MOST_REFUSALS or more, whatever the reason: fewer rows may well be wrong in the
  same way; or
- the reason speaks of the place or of who writes there, not of what is written, and since the first of two refusals or
  more it took nothing.

So a batch of one row, a batch of which one row is taken, and two reasons make dead letters.

That the worker lacks a right needs no count, because no row was tried: sinks raise MissingPrivilegeError. At the start
it ends the worker, which names the missing permission. Later it was revoked, and may be granted again: the batch waits
(``as_waiting``).
"""

from __future__ import annotations

from pgsluice.shared.errors import Cause, MissingPrivilegeError, TransientError

MOST_REFUSALS = 100


class Refusals:
    """Counts what one place takes and refuses. One thread at a time may call."""

    def __init__(self) -> None:
        self.count = 0
        """Refusals of this pass."""
        self._reasons: set[str] = set()
        self._speak_of_place = True
        self.has_taken = False
        """True if it took anything of this batch."""
        self._has_taken_since = False
        """True if it took anything since the first refusal of this pass."""

    def begin_batch(self) -> None:
        self.begin_pass()
        self._has_taken_since = self.has_taken = False

    def begin_pass(self) -> None:
        """Forgets the refusals: the same batch comes again."""
        self._reasons.clear()
        self.count, self._speak_of_place = 0, True

    def note_taken(self) -> None:
        self.has_taken = self._has_taken_since = True

    def note_refused(self, reason: str, count: int = 1, *, speaks_of_place: bool = False) -> None:
        """Counts refusals. ``reason`` holds no value of a row: reasons are compared."""
        self._has_taken_since = self._has_taken_since and self.count > 0
        self._speak_of_place = self._speak_of_place and speaks_of_place
        self._reasons.add(reason)
        self.count += count

    @property
    def is_place_at_fault(self) -> bool:
        if self.count < 2 or len(self._reasons) > 1 or self._has_taken_since:
            return False
        return self._speak_of_place or (self.count >= MOST_REFUSALS and not self.has_taken)

    def check(self, place: str, remedy: str) -> None:
        """Raises TransientError when the place is at fault. ``place`` is its name in a sentence."""
        if self.is_place_at_fault:
            [reason] = self._reasons
            remedy = f"{remedy}; nothing is set aside, and the worker continues automatically then"
            raise TransientError(f"{place} refuses everything that is sent to it: {reason}", remedy, Cause.TARGET)


def as_waiting(error: TransientError | MissingPrivilegeError) -> TransientError:
    """Returns the error with which a batch waits that failed with ``error``."""
    return error if isinstance(error, TransientError) else TransientError(error.fact, error.remedy, Cause.TARGET)
