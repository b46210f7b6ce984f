"""Whether messages of the change stream follow each other, and what is applied, by the change that each names as before it.

Sequences alone do not tell: a broker that lost its newest messages gives their sequences out again.
"""

from __future__ import annotations

from typing import Any

from pgsluice.shared.errors import HistoryError
from pgsluice.shared.wire.lsn import format_lsn
from pgsluice.shared.wire.position import Anchor
from pgsluice.worker.sinks.sink import Applied


class MessageChain:
    """Proves that the rows of a batch go on after ``applied``, and after each other, whatever sequences say. ``before`` is what
    the first message must name as before it, when that is not where ``applied`` is."""

    def __init__(self, applied: Applied, before: Anchor | None = None) -> None:
        self._applied = applied
        self._before = before
        self._is_first = True

    def follow(self, row: Any) -> None:
        """Raises HistoryError. A row may cover no message, and an earlier version's messages name none."""
        if not row.changes:
            return
        after = _anchor(row.after)
        if self._before is not None:
            check_follows(row.first_sequence, after, self._before)
        elif self._is_first and after is not None:
            self._check_first(row.first_sequence, after)
        self._is_first = False
        self._before = _anchor(row.anchor)

    def _check_first(self, sequence: int, after: Anchor) -> None:
        applied = self._applied
        if (after.position.commit_lsn, after.committed_at) != (applied.commit_lsn, applied.committed_at):
            raise HistoryError(
                f"message {sequence} of the change stream follows the change at {after.position}, but what is applied ends "
                f"with the transaction at {format_lsn(applied.commit_lsn)}: the stream was replaced or lost messages",
                "start the worker again: it finds its place in the stream, or says why it cannot",
            )


def check_follows(sequence: int, after: Anchor | None, before: Anchor) -> None:
    """Raises HistoryError when the message at ``sequence`` names another message before it than the one that ends at ``before``.
    Messages of earlier versions name none."""
    if after is not None and after != before:
        raise HistoryError(
            f"message {sequence} of the change stream follows the change at {after.position}, but what was read before it "
            f"ends at {before.position}: the stream was replaced or lost messages",
            "start the worker again: it finds its place in the stream, or says why it cannot",
        )


def _anchor(text: str | None) -> Anchor | None:
    return None if text is None else Anchor.parse(text)
