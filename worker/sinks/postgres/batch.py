"""A batch of changes, as the sink applies it in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition
from pgsluice.worker.sinks.sink import Applied


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes that are left to apply of a batch; ``position`` is the worker's when they are applied."""

    partitions: Sequence[FoldedPartition]
    first_sequence: int
    position: Applied
    changes: int

    @property
    def stages(self) -> list[str]:
        return [name for folded in self.partitions for name in folded.stages()]

    @property
    def parked_tables(self) -> set[str]:
        return {table for folded in self.partitions for table in folded.parked_tables()}

    @property
    def tables(self) -> list[Table]:
        """Each once."""
        return tables_of(self.partitions)

    @property
    def defines(self) -> bool:
        return any(folded.definitions for folded in self.partitions)

    def __str__(self) -> str:
        return f"messages {self.first_sequence} to {self.position.sequence}"


def tables_of(partitions: Sequence[FoldedPartition]) -> list[Table]:
    """Returns the tables whose rows change, each once; truncated ones come first."""
    pieces = [piece.table for folded in partitions for piece in folded.pieces]
    clearings = [clearing.table for folded in partitions for clearing in folded.clearings]
    return list(dict.fromkeys(clearings + pieces))
