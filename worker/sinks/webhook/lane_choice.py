"""Which lane a change goes by: all changes of one key by the same, whatever partition or batch they are in.

A table without a key goes by one lane as a whole. What concerns more than one key, a TRUNCATE or an update that changes the key,
is a barrier. Keys are compared as the server writes them: ``1.0`` and ``1.00`` are two.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from shared.changes import DELETE, NO_OLD_ROW, CopiedRows, MessageChanges, TableChanges, Truncation
from shared.table import UNCHANGED, Table, Value
from worker.sinks.webhook.placed_lines import BARRIER


class ChosenLanes:
    """The lanes of a message's lines: ``first`` by change index, None for a change that is in no part; ``others`` holds those of
    a change's further lines, when it goes to several tables."""

    def __init__(self, message: MessageChanges, lanes: int) -> None:
        self.first: list[int | None] = [None] * message.change_count
        self.others: dict[int, list[int]] = {}
        for part in message.parts:
            if isinstance(part, Truncation):
                for _ in part.tables:
                    self._add(part.change_index, BARRIER)
            else:
                for index, lane in zip(part.change_indexes, _lanes_of_rows(part, lanes), strict=True):
                    self._add(index, lane)

    def _add(self, index: int, lane: int) -> None:
        if self.first[index] is None:
            self.first[index] = lane
        else:
            self.others.setdefault(index, []).append(lane)


def lane_of_copied(copied: CopiedRows, lanes: int) -> int:
    """One for all rows of the message: a copy has a key once, so rows may come in any order, and together they fill requests."""
    if copied.restarts:
        return BARRIER
    seed = _seed(copied.table)
    return (crc32(b"%d" % copied.sequence, seed) if copied.table.key else seed) % lanes


def _lanes_of_rows(changes: TableChanges, lanes: int) -> list[int]:
    table = changes.table
    seed = _seed(table)
    if not table.key:
        return [seed % lanes] * len(changes)
    new_keys = zip(*[changes.new[column] for column in table.key], strict=True)
    if changes.old is None or changes.old_kinds is None:
        return [_lane(key, seed, lanes) for key in new_keys]
    old_keys = zip(*[changes.old[column] for column in table.key], strict=True)
    chosen = []
    for operation, kind, new_key, old_key in zip(changes.operations, changes.old_kinds, new_keys, old_keys, strict=True):
        if operation == DELETE:
            chosen.append(_lane(old_key, seed, lanes))
        elif kind == NO_OLD_ROW or _is_same(new_key, old_key):
            chosen.append(_lane(new_key if kind == NO_OLD_ROW else old_key, seed, lanes))
        else:
            chosen.append(BARRIER)
    return chosen


def _is_same(new_key: tuple[Value, ...], old_key: tuple[Value, ...]) -> bool:
    return all(new is UNCHANGED or new == old for new, old in zip(new_key, old_key, strict=True))


def _seed(table: Table) -> int:
    """By its OID: a table that is renamed keeps its lanes."""
    return crc32(b"%d" % table.oid)


def _lane(key: Iterable[Value], seed: int, lanes: int) -> int:
    return crc32(b"\0".join([value if isinstance(value, bytes) else b"" for value in key]), seed) % lanes
