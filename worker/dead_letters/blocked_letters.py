"""Which dead letters wait behind which: later changes of a row that has one became letters too, whatever they hold. Pure.

A change of a key takes the block along: whoever waits behind it waits behind the letters before it as well. So what is behind a
letter is found by going from each letter to the next one of every row that it touches.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.shared.broker.dead_letter_stream import StoredLetter
from pgsluice.worker.dead_letters.exclusions import Row, touched_rows
from pgsluice.worker.dead_letters.letter import changes_of


class BlockedLetters:
    """Of ``letters`` in the order of their workers and positions. Each is decoded once."""

    def __init__(self, letters: Sequence[StoredLetter]) -> None:
        self._letters = letters
        self._places = {_name(stored): place for place, stored in enumerate(letters)}
        self._next: list[tuple[int, ...]] = []
        newest: dict[tuple[str, Row], int] = {}
        for place in reversed(range(len(letters))):
            letter = letters[place].letter
            rows = {(letter.worker, row) for row in touched_rows(changes_of(letter, 0))}
            self._next.append(tuple(sorted({newest[row] for row in rows if row in newest})))
            newest |= dict.fromkeys(rows, place)
        self._next.reverse()
        self._counts = self._counted()

    def count_behind(self, stored: StoredLetter) -> int:
        return self._counts[self._places[_name(stored)]]

    def behind(self, stored: StoredLetter) -> list[StoredLetter]:
        """In the order of their positions."""
        return [self._letters[place] for place in sorted(self._places_behind(self._places[_name(stored)]))]

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


def _name(stored: StoredLetter) -> tuple[str, object]:
    return stored.letter.worker, stored.letter.position
