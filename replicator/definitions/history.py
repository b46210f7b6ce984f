"""Versions of each published table's definition, by the position from which on they apply: pure, no I/O.

Replication lags: the catalog of the time of its rows is gone. And a session begins where the slot is, before changes
that the last one had seen, so the newest definition is not enough either.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.shared.wire.definition import TypeDefined
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import Defined


@dataclass(frozen=True, slots=True)
class Version:
    """``defined`` applies to changes after ``position``."""

    position: Position
    defined: Defined


class History:
    """The versions of one table or type, in order."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        self.versions = sorted(versions, key=lambda version: version.position)

    @property
    def is_whole(self) -> bool:
        """Returns whether the newest version has everything that this version of pgsluice records of a table or type."""
        newest = self.versions[-1].defined if self.versions else None
        # a single kind: earlier versions sent less about types
        return newest is not None and not (isinstance(newest, TypeDefined) and not newest.is_whole)

    def before(self, position: Position) -> Defined | None:
        """Returns the definition for the change at ``position``; None if unknown."""
        index = bisect_left(self.versions, position, key=lambda version: version.position)
        return self.versions[index - 1].defined if index else None

    def note(self, version: Version) -> bool:
        """Returns whether it is news: a session that goes back hears again what it has heard."""
        index = bisect_left(self.versions, version.position, key=lambda each: each.position)
        known = self.versions[index : index + 1]
        if known and known[0].position == version.position:
            if known[0] == version:
                return False
            self.versions[index] = version
            return True
        if index and self.versions[index - 1].defined == version.defined:
            return False
        self.versions.insert(index, version)
        return True

    def forget(self, position: Position) -> None:
        """Removes the version that applies after ``position``: no row is of it."""
        self.versions = [version for version in self.versions if version.position != position]

    def forget_before(self, confirmed: LSN) -> bool:
        """Forgets versions that end before ``confirmed``, since earlier commits never come again. Returns whether there
        were any."""
        kept = max(0, bisect_left(self.versions, confirmed, key=lambda version: version.position.commit_lsn) - 1)
        self.versions = self.versions[kept:]
        return kept > 0
