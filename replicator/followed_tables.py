"""Which tables' changes go into the stream: those that the group follows, and of one that left those before its end.

The server sends changes of a table from the moment that the publication has it, whoever put it there. A group that copies has not
copied its rows by then, and one that names its tables may never want it. So what comes of a table that the group does not follow
is left out. A table that joins is followed from before its snapshot on, and in the ledger before that: what was left out of it
commits before the snapshot, so its copy holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct

from pgsluice.shared.wire.position import LSN

_OID = Struct(">I")
NEVER_LEFT = LSN((1 << 64) - 1)


class FollowedTables:
    """By OIDs as frames have them. ``on_stranger`` is called when changes of a table are left out for the first time."""

    def __init__(self, on_stranger: Callable[[], None] = lambda: None) -> None:
        self.on_stranger = on_stranger
        self.version = 0
        """Grows with each table that leaves."""
        self._ends: dict[bytes, LSN] | None = None
        self._strangers: set[int] = set()

    @property
    def strangers(self) -> frozenset[int]:
        """Tables of which changes were left out, and that are not followed."""
        return frozenset(self._strangers)

    def begin(self, oids: Iterable[int], left: Mapping[int, LSN]) -> None:
        """From now on only these are followed; of those in ``left`` what commits before that. Until this is called all are."""
        self._ends = {_OID.pack(oid): end for oid, end in left.items()} | {_OID.pack(oid): NEVER_LEFT for oid in oids}
        self.version += 1

    def follow(self, oids: Iterable[int]) -> None:
        for oid in oids:
            self._strangers.discard(oid)
            if self._ends is not None:
                self._ends[_OID.pack(oid)] = NEVER_LEFT

    def leave(self, oid: int, end: LSN) -> None:
        """Only what commits before ``end`` is followed of the table, if it was followed."""
        if self._ends is not None and self._ends.get(_OID.pack(oid)) == NEVER_LEFT:
            self._ends[_OID.pack(oid)] = end
            self.version += 1

    def end_of(self, oid: int) -> LSN:
        """Where the table was known to have left; above any other LSN for one that is followed, or that never left."""
        return NEVER_LEFT if self._ends is None else self._ends.get(_OID.pack(oid), NEVER_LEFT)

    def has(self, oid: int) -> bool:
        """Whether it is followed from now on."""
        return self._ends is None or self._ends.get(_OID.pack(oid)) == NEVER_LEFT

    def is_lasting(self, oid: bytes) -> bool:
        """Whether whatever comes of the table goes into the stream, until ``version`` is another."""
        return self._ends is None or self._ends.get(oid) == NEVER_LEFT

    def takes(self, oid: bytes, commit_lsn: LSN) -> bool:
        """Whether a change of a transaction that commits there goes into the stream."""
        if self._ends is None or commit_lsn < self._ends.get(oid, 0):
            return True
        [number] = _OID.unpack(oid)
        if number not in self._strangers:
            self._strangers.add(number)
            self.on_stranger()
        return False
