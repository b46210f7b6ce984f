"""Which messages of the snapshot stream a copy still needs, by the ranges they belong to: pure.

Workers need what they have not applied, and all chunks of a body until its last one is applied. The copy needs, of each range in
hand, the newest message: whoever takes the range up finds there how far it has come, and without it would store its rows again.
Whatever else a worker has applied may go, wherever it lies in the stream (``replicator.retention`` removes it).

A range is in hand from when a task is given it until its outcome is noted, repetitions included. What is older than the round
goes all at once, so that nothing has to be known of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.shared.wire.names import GroupNames

Range = tuple[int, int]
"""A page range, by table oid and number."""


@dataclass(frozen=True, slots=True)
class EndedRange:
    """A range whose newest message nobody needs any more. ``last_sequence`` is None where a task may have stored anything or
    nothing. ``is_whole``: none of its bodies was cut into chunks."""

    subject: str
    last_sequence: int | None
    is_whole: bool

    def is_applied(self, applied: int) -> bool:
        return self.last_sequence is not None and self.last_sequence <= applied

    def may_reach_across(self, applied: int) -> bool:
        """Whether one of its bodies may have chunks before and after that sequence."""
        return not self.is_whole and not self.is_applied(applied)


class HeldRanges:
    """Of one round, whose snapshot is ``snapshot_id``. Every message up to ``older`` was there before it began."""

    def __init__(self, names: GroupNames, snapshot_id: str, older: int) -> None:
        self.older = older
        self._names = names
        self._snapshot_id = snapshot_id
        self._in_hand: dict[Range, str] = {}
        self._ended: list[EndedRange] = []

    @property
    def in_hand(self) -> list[str]:
        """Subjects."""
        return list(self._in_hand.values())

    @property
    def ended(self) -> list[EndedRange]:
        """Those of which the stream may hold messages."""
        return list(self._ended)

    def hold(self, ranges: Iterable[Range]) -> None:
        """They are given to a task, for the first time or again."""
        for oid, number in ranges:
            self._in_hand[oid, number] = self._names.snapshot_range_subject(self._snapshot_id, oid, number)

    def finish(self, key: Range, last_sequence: int, *, is_whole: bool) -> None:
        """All of it is stored, and it is noted."""
        self._ended.append(EndedRange(self._in_hand.pop(key), last_sequence, is_whole))

    def let_go(self, key: Range) -> None:
        """No task has it, and nobody takes it up again under this snapshot."""
        if (subject := self._in_hand.pop(key, None)) is not None:
            self._ended.append(EndedRange(subject, None, is_whole=False))

    def forget(self, ended: Iterable[EndedRange]) -> None:
        """The stream holds nothing of them any more."""
        gone = set(ended)
        self._ended = [ended_range for ended_range in self._ended if ended_range not in gone]
