"""Looking through a batch without writing it: tasks take out what is rejected, and the rest goes nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.changes import CopiedRows, MessageChanges
from worker.sinks.sink import Partition


@dataclass(frozen=True, slots=True)
class LookThrough:
    """A ``PartitionWriter`` whose receipts say nothing."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        for _ in messages:
            pass
        yield b""

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        for _ in copied:
            pass
        yield b""
