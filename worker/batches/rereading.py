"""Reads applied messages again, in the driver: as the tasks of the newest batch would write them, but without copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pgsluice.worker.batches.ownership import NEVER_COPIED
from pgsluice.worker.batches.planning import SequenceRange
from pgsluice.worker.batches.receipts import decode_error
from pgsluice.worker.batches.task import PartitionTask
from pgsluice.worker.sinks.sink import Lane, PartitionWriter


class Rereading:
    """A ``Reread`` (``worker.sinks.abilities``)."""

    def __init__(self) -> None:
        self._task: PartitionTask | None = None

    def use_task(self, task: PartitionTask) -> None:
        """Leaves out and transforms from now on as ``task`` does."""
        self._task = task

    def __call__(self, writer: PartitionWriter, first: int, last: int) -> Iterator[tuple[bytes, int]]:
        task = self._task
        assert task is not None, "a batch was planned before"
        reading = replace(task, writer=writer, ownership=NEVER_COPIED, counts=False)
        for answer in reading(SequenceRange(Lane.CHANGES, first, last, 1)):
            if answer.error is not None:
                raise decode_error(answer.error)
            if answer.body is not None:
                yield answer.body, answer.covered.last_sequence
