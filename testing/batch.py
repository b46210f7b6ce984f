"""Takes a batch through a sink as tasks and driver do, without Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pgsluice.shared.rows.changes import CopiedRows, DefinitionChange, MessageChanges
from pgsluice.worker.batches.ownership import NEVER_COPIED
from pgsluice.worker.definitions.arrivals import arrivals_of, given_in_place
from pgsluice.worker.sinks.abilities import AlteredSink
from pgsluice.worker.sinks.sink import Applied, Lane, Partition, PartitionWriter, Receipt, Sink

STREAM_CREATED = "2026-01-31T12:00:00Z"

Batch = Sequence[Sequence[MessageChanges]]
"""The messages of each partition."""

CopiedBatch = Sequence[Sequence[CopiedRows]]
"""The messages of each partition of the snapshot stream."""


def write(sink: Sink, batch: Batch) -> list[Receipt]:
    """Returns the receipts that the tasks of a batch send to the driver."""
    return [receipt for messages in batch for receipt in write_partition(sink.writer(), messages, len(batch))]


def apply(sink: Sink, batch: Batch, stream_created: str = STREAM_CREATED) -> Applied:
    return sink.commit(with_definitions(sink, write(sink, batch), batch), stream_created)


def with_definitions(sink: Sink, receipts: Iterable[Receipt], batch: Batch) -> Iterable[Receipt]:
    """Returns ``receipts`` as the worker hands them to ``commit``."""
    if not isinstance(sink, AlteredSink):
        return receipts
    arrivals = [arrival for messages in batch for message in messages for arrival in arrivals_of(message, NEVER_COPIED)]
    return given_in_place(receipts, arrivals, sink.apply_ddl)


def apply_in(sink: Sink, batch: Batch, lane: Lane, cohort: frozenset[int]) -> Applied:
    """Takes a batch of ``lane`` through the sink while the tables of ``cohort`` lag."""
    receipts = [replace(receipt, lane=lane, cohort=cohort) for receipt in write(sink, batch)]
    return sink.commit(receipts, STREAM_CREATED)


def write_partition(writer: PartitionWriter, messages: Sequence[MessageChanges], partitions: int = 1) -> list[Receipt]:
    """Each receipt is stamped with the messages that were taken since the one before."""
    # a single kind: asks whether there are definitions
    defines = any(isinstance(part, DefinitionChange) for each in messages for part in each.parts)
    partition = Partition(messages[0].first_sequence, messages[-1].sequence, partitions, defines)
    taken = _Taken(messages)
    receipts = [taken.receipt(body) for body in writer.write(partition, iter(taken))]
    assert receipts, "a writer yields at least one receipt"
    assert receipts[-1].last_sequence == partition.last_sequence, "all messages are taken before the last receipt"
    return receipts


def write_copied(sink: Sink, batch: CopiedBatch) -> list[Receipt]:
    return [receipt for copied in batch for receipt in write_copied_partition(sink.writer(), copied)]


def apply_copied(sink: Sink, batch: CopiedBatch) -> Applied:
    return sink.commit(write_copied(sink, batch), STREAM_CREATED)


def write_copied_partition(writer: PartitionWriter, copied: Sequence[CopiedRows]) -> list[Receipt]:
    """Does as ``write_partition``, with rows of a snapshot."""
    left, taken = deque(copied), list[CopiedRows]()

    def take() -> Iterator[CopiedRows]:
        while left:
            taken.append(left.popleft())
            yield taken[-1]

    receipts = []
    for body in writer.write_copied(Partition(copied[0].sequence, copied[-1].sequence), take()):
        assert taken, "a receipt covers whole messages, at least one"
        rows = sum(message.rows for message in taken)
        receipts.append(Receipt(taken[0].sequence, taken[-1].sequence, rows, 0, 0, body, Lane.COPIED))
        taken.clear()
    assert receipts, "a writer yields at least one receipt"
    assert receipts[-1].last_sequence == copied[-1].sequence, "all messages are taken before the last receipt"
    return receipts


class _Taken:
    """Messages on their way into a writer, and what was taken since the last receipt."""

    def __init__(self, messages: Iterable[MessageChanges]) -> None:
        self._messages = messages
        self._since_receipt: list[MessageChanges] = []

    def __iter__(self) -> Iterator[MessageChanges]:
        for message in self._messages:
            self._since_receipt.append(message)
            yield message

    def receipt(self, body: bytes) -> Receipt:
        taken, self._since_receipt = self._since_receipt, []
        assert taken, "a receipt covers whole messages, at least one"
        commits = [t for message in taken for t in message.transactions if t.commits]
        return Receipt(
            first_sequence=taken[0].first_sequence,
            last_sequence=taken[-1].sequence,
            changes=sum(message.change_count for message in taken),
            commit_lsn=commits[-1].commit_lsn if commits else 0,
            committed_at=commits[-1].committed_at if commits else 0,
            body=body,
        )
