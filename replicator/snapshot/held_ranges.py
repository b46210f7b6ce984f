"""The messages of the snapshot stream that a copy still needs, by the ranges they belong to: pure.

Workers need what they have not applied, and all chunks of a body until its last one is applied. The copy needs the
newest message of each current range: a process that takes the range up finds its progress there, and without it would
store its rows again. Everything else that workers have applied can be removed, wherever it lies in the stream
(``replicator.retention`` removes it).

A range is current from when a task gets it until its outcome is noted, repetitions included. Messages older than the
round are removed all at once, independent of their ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.shared.wire.names import GroupNames

Range = tuple[int, int]
"""A page range, by table oid and number."""


@dataclass(frozen=True, slots=True)
class EndedRange:
    """A range whose newest message is no longer needed. ``last_sequence`` is None if a task may have stored anything or
    nothing. ``is_whole``: none of its bodies was cut into chunks."""

    subject: str
    last_sequence: int | None
    is_whole: bool

    def is_applied(self, applied: int) -> bool:
        return self.last_sequence is not None and self.last_sequence <= applied

    def may_reach_across(self, applied: int) -> bool:
        """Returns whether one of its bodies may have chunks before and after that sequence."""
        return not self.is_whole and not self.is_applied(applied)


class HeldRanges:
    """The ranges of one round, whose snapshot is ``snapshot_id``. Every message up to ``older`` existed before it
    began."""

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
        """Ended ranges whose messages the stream may still contain."""
        return list(self._ended)

    def hold(self, ranges: Iterable[Range]) -> None:
        """Holds ranges that are given to a task, for the first time or again."""
        for oid, number in ranges:
            self._in_hand[oid, number] = self._names.snapshot_range_subject(self._snapshot_id, oid, number)

    def finish(self, key: Range, last_sequence: int, *, is_whole: bool) -> None:
        """Notes that the range has ended: all of it is stored."""
        self._ended.append(EndedRange(self._in_hand.pop(key), last_sequence, is_whole))

    def release(self, key: Range) -> None:
        """Releases a range that no task has, and that is not taken up again under this snapshot."""
        if (subject := self._in_hand.pop(key, None)) is not None:
            self._ended.append(EndedRange(subject, None, is_whole=False))

    def forget(self, ended: Iterable[EndedRange]) -> None:
        """Forgets ranges of which the stream holds nothing any more."""
        gone = set(ended)
        self._ended = [ended_range for ended_range in self._ended if ended_range not in gone]
