"""Rejections: the way for rules and sinks to let a change that cannot be applied leave the stream without stopping it.

Code that finds that a change can never be applied unchanged (a rule that does not come to an end, a target that refuses
the value, a receiver that answers 400) makes a ``Rejection`` of it. Where it is raised or collected:

- ``Sink.commit``, in the driver, and ``PartitionWriter.write`` and ``write_copied``, in a task, raise
  ``RejectedChanges``. By then nothing of the batch may be durable that a second attempt would double. A sink that
  cannot name them yet raises ``WriteAgain``, and checks single changes in the pass that follows.
- Rules do not raise. Changes that they reject are left out of the message and collected by the caller
  (``worker.batches.task``); other rows of the partition are checked too, so that all rejections of a partition are
  known at once.

What the worker does with rejections:

1. Tasks search the whole batch, take the rejected changes out of the messages, before the rules, and with them later
   changes of the same rows (*behind* them), because a row's changes are applied in commit order or not at all.
2. It publishes what was taken out to the group's dead-letter stream (``shared.wire.dead_letter``), each change as a
   message that decodes alone, and waits for the acknowledgement.
3. Then the batch is written again without all of that, and the sink commits the rest with its position.

A crash between 2 and 3 repeats all of it; a change with a dead letter already is not published again. So nothing is
lost and nothing is doubled. Rows stay blocked until their dead letters are replayed or discarded.

Each raise costs another pass over the batch: name as many changes at a time as you can find, and hold back later
changes of the same row yourself while you search for more. A sink that is at least once may remember what it has
delivered, so as not to deliver it again in the next pass; the receipts may be cut otherwise then.

Never reject what may succeed later (raise TransientError), as where the destination refuses everything (``refusals``),
nor what is wrong with a table or the destination as a whole (raise TerminalError; MissingPrivilegeError for a right).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.rules.rule import RejectedRow
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.position import Position

BEHIND = "behind"
"""Begin of the reason of a dead letter that only waits for another one."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One change that cannot be applied. ``reason`` is one sentence that names the rule, the column, the constraint or
    the status code, and never holds a row value: it is shown in logs and listings."""

    position: Position
    reason: str

    @classmethod
    def of(cls, message: MessageChanges, change_index: int, reason: str) -> Rejection:
        """Returns the rejection of the change with ``change_index`` in ``message``."""
        for transaction in message.transactions:
            if transaction.first_change <= change_index < transaction.end_change:
                return cls(transaction.position(change_index), reason)
        raise ValueError(f"message {message.sequence} has no change {change_index}")


def refusal_of(row: RejectedRow) -> str:
    """Returns the reason of a rejection by a rule."""
    return f"{row.rule}: {row.reason}"


class RejectedChanges(Exception):  # noqa: N818  not a failure of ours: the worker goes on without them
    """The destination refuses these changes (at least one), and would take the rest of the batch. Never leaves the worker."""

    def __init__(self, rejections: Sequence[Rejection]) -> None:
        super().__init__(f"{len(rejections)} changes")
        self.rejections = rejections


class WriteAgain(Exception):  # noqa: N818  nothing failed for good
    """Requests another pass over the batch at once: TransientError without the pause. For a sink that has to check
    single changes before it can name rejected ones. Never leaves the worker."""
