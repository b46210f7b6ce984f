"""Dependencies between dead letters: later changes of a row that has one became dead letters too, whatever they hold. Pure.

A change of a key takes the block along: a change after it waits for the dead letters before it as well. So the ones
after a dead letter, or before it, are found by going from each to the next one of every row that it touches.

If a table's dead letters know its rows by several keys, or one is a truncation, it is unknown whether two of them are
about one row: all of them are treated as one row's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from pgsluice.shared.broker.dead_letter_stream import StoredLetter
from pgsluice.worker.dead_letters.exclusions import Row, TableKey, touched_rows
from pgsluice.worker.dead_letters.letter import changes_of

Queues = frozenset[Hashable]
"""The rows of a worker that a dead letter is about. The dead letters of each are applied in order."""


class BlockedLetters:
    """``letters`` sorted by worker and position. Each is decoded once."""

    def __init__(self, letters: Sequence[StoredLetter]) -> None:
        self._letters = letters
        self._places = {_name(stored): place for place, stored in enumerate(letters)}
        self._queues = _queues_of(letters)
        self._next: list[tuple[int, ...]] = []
        newest: dict[Hashable, int] = {}
        for place in reversed(range(len(letters))):
            queues = self._queues[place]
            self._next.append(tuple(sorted({newest[queue] for queue in queues if queue in newest})))
            newest |= dict.fromkeys(queues, place)
        self._next.reverse()
        self._counts = self._counted()

    def count_behind(self, stored: StoredLetter) -> int:
        return self._counts[self._places[_name(stored)]]

    def behind(self, stored: StoredLetter) -> list[StoredLetter]:
        """Returns the dead letters that wait for ``stored``, by position."""
        return [self._letters[place] for place in sorted(self._places_behind(self._places[_name(stored)]))]

    def with_earlier(self, chosen: Iterable[StoredLetter]) -> list[StoredLetter]:
        """Returns ``chosen`` and the earlier dead letters of their rows, by position, the sequence in which they are
        applied."""
        wanted = {self._places[_name(stored)] for stored in chosen}
        queues: set[Hashable] = set()
        for place in reversed(range(len(self._letters))):
            if place in wanted or queues & self._queues[place]:
                wanted.add(place)
                queues |= self._queues[place]
        return [self._letters[place] for place in sorted(wanted)]

    def split(
        self, letters: Sequence[StoredLetter], held: Iterable[StoredLetter]
    ) -> tuple[list[StoredLetter], list[StoredLetter]]:
        """Splits ``letters`` into the ones that may be applied while ``held`` may not, and the others: ``held``, and
        what waits for them."""
        not_free = {self._places[_name(stored)] for stored in held}
        queues: set[Hashable] = set()
        free, waiting = [], []
        for stored in letters:
            place = self._places[_name(stored)]
            if place in not_free or queues & self._queues[place]:
                queues |= self._queues[place]
                waiting.append(stored)
            else:
                free.append(stored)
        return free, waiting

    def _counted(self) -> list[int]:
        """A chain is counted from its end; only where changes of keys join or part chains are they followed."""
        counts = [0] * len(self._letters)
        for place in reversed(range(len(self._letters))):
            match self._next[place]:
                case ():
                    continue
                case (following,):
                    counts[place] = 1 + counts[following]
                case _:
                    counts[place] = len(self._places_behind(place))
        return counts

    def _places_behind(self, place: int) -> set[int]:
        found: set[int] = set()
        open_places = list(self._next[place])
        while open_places:
            following = open_places.pop()
            if following not in found:
                found.add(following)
                open_places += self._next[following]
        return found


def _queues_of(letters: Sequence[StoredLetter]) -> list[Queues]:
    touched = [frozenset(touched_rows(changes_of(stored.letter, 0))) for stored in letters]
    keys: defaultdict[tuple[str, int], set[TableKey]] = defaultdict(set)
    for stored, rows in zip(letters, touched, strict=True):
        for table, _ in rows:
            keys[stored.letter.worker, table.oid].add(table)

    def queue(worker: str, row: Row) -> Hashable:
        table = worker, row[0].oid
        return table if len(keys[table]) > 1 else (worker, row)

    return [frozenset(queue(stored.letter.worker, row) for row in rows) for stored, rows in zip(letters, touched, strict=True)]


def _name(stored: StoredLetter) -> tuple[str, object]:
    return stored.letter.worker, stored.letter.position
