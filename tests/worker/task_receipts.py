"""What the driver makes of a batch whose tasks ran here, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.worker.batches.planning import SequenceRange, encode_range
from pgsluice.worker.batches.receipts import read_receipts
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Receipt


class _Row(dict[str, object]):
    """A receipt's columns as attributes, as Spark's rows have them."""

    def __getattr__(self, name: str) -> object:
        return self[name]


def receipts(task: PartitionTask, ranges: Iterable[SequenceRange], applied: Applied = NOTHING_APPLIED) -> list[Receipt]:
    """``ranges`` are the batch's partitions."""
    rows = [_Row(row) for each in ranges for answer in task(iter([encode_range(each)])) for row in answer.to_pylist()]
    return list(read_receipts(rows, applied))
