"""The tables whose changes go into the stream: tables that the group follows, and tables that left, up to the end of each.

The server sends the changes of a table from the moment that it is in the publication, whichever role put it there. A
group that copies has not copied the table's rows by then, and a group that names its tables may never want it. So the
assembler leaves out the changes of a table that the group does not follow. A table that joins is first in the ledger,
then followed, and then its snapshot is exported: a change that was left out commits before the snapshot, so the copy
holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct

from pgsluice.shared.wire.position import LSN

_OID = Struct(">I")
NEVER_LEFT = LSN((1 << 64) - 1)


class FollowedTables:
    """The followed tables, by OIDs as frames have them. Until ``begin`` is called, all tables are followed."""

    def __init__(self) -> None:
        self.on_stranger: Callable[[], None] = lambda: None
        """Called when a change of a table is left out for the first time."""
        self.version = 0
        """Grows with each table that leaves."""
        self._ends: dict[bytes, LSN] | None = None
        self._strangers: set[bytes] = set()

    def begin(self, oids: Iterable[int], left: Mapping[int, LSN]) -> None:
        """Follows only these from now on, and of each table in ``left`` the transactions that commit before its LSN."""
        self._ends = {_OID.pack(oid): end for oid, end in left.items()} | {_OID.pack(oid): NEVER_LEFT for oid in oids}
        self.version += 1

    def follow(self, oids: Iterable[int]) -> None:
        for oid in oids:
            self._strangers.discard(_OID.pack(oid))
            if self._ends is not None:
                self._ends[_OID.pack(oid)] = NEVER_LEFT

    def leave(self, oid: int, end: LSN) -> None:
        """Follows of the table only the transactions that commit before ``end``, if it was followed."""
        if self._ends is not None and self.has(oid):
            self._ends[_OID.pack(oid)] = end
            self.version += 1

    def end_of(self, oid: int) -> LSN:
        """Returns the LSN at which the table was known to have left; NEVER_LEFT for a table that is followed, or that
        never left."""
        return NEVER_LEFT if self._ends is None else self._ends.get(_OID.pack(oid), NEVER_LEFT)

    def has(self, oid: int) -> bool:
        """Returns whether the table is followed from now on."""
        return self.is_lasting(_OID.pack(oid))

    def is_lasting(self, oid: bytes) -> bool:
        """Returns whether all changes of the table go into the stream until ``version`` is another."""
        return self._ends is None or self._ends.get(oid) == NEVER_LEFT

    def takes(self, oid: bytes, commit_lsn: LSN) -> bool:
        """Returns whether a change of a transaction that commits at ``commit_lsn`` goes into the stream."""
        if self._ends is None or commit_lsn < self._ends.get(oid, 0):
            return True
        if oid not in self._strangers:
            self._strangers.add(oid)
            self.on_stranger()
        return False
