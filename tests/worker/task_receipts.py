"""What the driver makes of a batch whose tasks ran here, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.worker.batches.planning import SequenceRange
from pgsluice.worker.batches.receipts import read_receipts
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Receipt


def receipts(task: PartitionTask, ranges: Iterable[SequenceRange], applied: Applied = NOTHING_APPLIED) -> list[Receipt]:
    """``ranges`` are the batch's partitions."""
    return list(read_receipts((answer for each in ranges for answer in task(each)), applied))
