"""A snapshot stream as tasks of a copy may leave it, and which of its messages are still needed, by the definition of that."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pgsluice.replicator.snapshot.held_ranges import HeldRanges
from pgsluice.shared.wire.message import Chunk
from tests.worker.published_copy import CopyPublisher

OID = 1
MOST_CHUNKS = 4


@dataclass
class _Range:
    """``bodies`` are the sequences of each one's chunks; the last body may be incomplete."""

    number: int
    count: int = 1
    is_in_hand: bool = True
    bodies: list[list[int]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.bodies or len(self.bodies[-1]) == self.count

    def needed(self, applied: int) -> set[int]:
        """Of the messages up to ``applied``."""
        needed: set[int] = set()
        for body in self.bodies:
            is_last = body is self.bodies[-1]
            is_open = is_last and not self.is_complete
            if (is_open and self.is_in_hand) or (not is_open and body[-1] > applied):
                needed.update(body)
            if is_last and self.is_in_hand:
                needed.add(body[-1])
        return needed


class RandomRanges:
    """``publish`` once."""

    def __init__(self, chance: random.Random, messages: CopyPublisher, held: HeldRanges) -> None:
        self._chance = chance
        self._publisher = messages
        self._held = held
        self._ranges: list[_Range] = []
        self.sequences: list[int] = []

    async def publish(self, first_number: int, size: int, bytes_each: int) -> None:
        """``size`` messages of some ranges, the first of that number; some of these are finished then, or let go."""
        self._ranges = [_Range(first_number + n) for n in range(self._chance.randint(1, 4))]
        self._held.hold((OID, one.number) for one in self._ranges)
        while len(self.sequences) < size:
            await self._publish_one(self._chance.choice(self._ranges), bytes_each)
        for one in self._ranges:
            one.is_in_hand = self._chance.random() < 0.5
            if one.is_in_hand:
                continue
            if one.bodies and one.is_complete and self._chance.random() < 0.7:
                is_whole = all(len(body) == 1 for body in one.bodies)
                self._held.finish((OID, one.number), one.bodies[-1][-1], is_whole=is_whole)
            else:
                self._held.release((OID, one.number))

    async def _publish_one(self, one: _Range, bytes_each: int) -> None:
        if one.is_complete:
            one.count = self._chance.choice([1, 1, self._chance.randint(2, MOST_CHUNKS)])
            one.bodies.append([])
        chunk = Chunk(len(one.bodies[-1]) + 1, one.count)
        sequence = await self._publisher.rows(OID, bytes(bytes_each), chunk, range_number=one.number)
        one.bodies[-1].append(sequence)
        self.sequences.append(sequence)

    def needed(self, applied: int) -> set[int]:
        """Sequences that somebody needs when every worker has applied all up to there."""
        unapplied = {sequence for sequence in self.sequences if sequence > applied}
        return unapplied.union(*(one.needed(applied) for one in self._ranges))

    def may_stay(self, applied: int) -> set[int]:
        """Those that nobody needs, and that go a little later: of a range that ended, when all of it is applied."""
        unapplied = (one for one in self._ranges if not one.is_in_hand and one.bodies and one.bodies[-1][-1] > applied)
        return {sequence for one in unapplied for body in one.bodies for sequence in body}
