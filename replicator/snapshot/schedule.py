"""Which ranges are copied next: pure, no I/O.

Largest tables first, since what is left at the end cannot be spread; no table has more than its share of the tasks; small
ranges travel together, since a Spark job costs tens of milliseconds whatever it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from pgsluice.replicator.snapshot.orders import RangeOrder

SMALL_SHARE = 8  # ranges that together have less than an eighth of the range size travel in one task
MOST_IN_A_TASK = 32


class Schedule:
    """``workers_per_table`` tasks copy one table at the same time."""

    def __init__(self, tables: Iterable[Sequence[RangeOrder]], workers_per_table: int, range_bytes: int) -> None:
        by_size = sorted(tables, key=lambda ranges: sum(order.pages.size_bytes for order in ranges), reverse=True)
        self._waiting = {ranges[0].pages.table_oid: deque(ranges) for ranges in by_size if ranges}
        self._tasks = dict.fromkeys(self._waiting, 0)
        self._workers_per_table = workers_per_table
        self._small_bytes = range_bytes // SMALL_SHARE

    @property
    def is_finished(self) -> bool:
        return not any(self._waiting.values()) and not any(self._tasks.values())

    def take(self) -> list[RangeOrder]:
        """What one task copies next; empty when there is nothing for another task now. To be released."""
        taken: list[RangeOrder] = []
        room = self._small_bytes
        for oid, waiting in self._waiting.items():
            if not waiting or self._tasks[oid] >= self._workers_per_table:
                continue
            while waiting and len(taken) < MOST_IN_A_TASK and (not taken or waiting[0].pages.size_bytes <= room):
                room -= waiting[0].pages.size_bytes
                taken.append(waiting.popleft())
            if room <= 0 or len(taken) == MOST_IN_A_TASK:
                break
        for oid in _oids(taken):
            self._tasks[oid] += 1
        return taken

    def release(self, taken: Sequence[RangeOrder]) -> None:
        """The task that copied them has ended, however."""
        for oid in _oids(taken):
            self._tasks[oid] -= 1

    def repeat(self, order: RangeOrder) -> None:
        """It is to be taken again, after the others of its table."""
        self._waiting[order.pages.table_oid].append(order)

    def drop(self, oid: int) -> None:
        """No further range of the table is taken."""
        self._waiting[oid].clear()


def _oids(ranges: Iterable[RangeOrder]) -> set[int]:
    return {order.pages.table_oid for order in ranges}
