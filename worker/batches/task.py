"""The code of a Spark task, for its part of a batch.

A task gets the names of its messages. It fetches them with batched direct gets, decodes them, applies rules and routes,
and hands them to the sink's writer. What goes back to the driver are answers (``receipts.TaskAnswer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.kafka.kafka_settings import KafkaSourceSettings
from pgsluice.shared.process.defect import place_of, unexpected
from pgsluice.shared.process.memory import give_back_freed_memory
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.position import Anchor
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from pgsluice.worker.batches.broker_connection import process_connection
from pgsluice.worker.batches.change_reader import Body, BodyElsewhere, ChangeReader, unreadable_elsewhere
from pgsluice.worker.batches.deleted_rows import check_deletes, split_deleted
from pgsluice.worker.batches.ownership import Ownership
from pgsluice.worker.batches.planning import SequenceRange
from pgsluice.worker.batches.receipts import Covered, TaskAnswer, check_follows, error_answer, receipt_answer
from pgsluice.worker.batches.snapshot_reader import SnapshotReader
from pgsluice.worker.batches.task_steps import TaskSteps
from pgsluice.worker.batches.unreadable_rows import unreadable_changes, unreadable_copied
from pgsluice.worker.dead_letters.exclusions import Exclusions
from pgsluice.worker.dead_letters.filter import DeadLetterFilter
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, refusal_of
from pgsluice.worker.dead_letters.task_report import TaskReport
from pgsluice.worker.metrics.batch_figures import FigureCount, TaskFigures
from pgsluice.worker.sinks.sink import Lane, Partition, PartitionWriter

PRELOAD = "PGSLUICE_PRELOAD"
"""Environment variable of Spark's Python processes: what they import in addition to this module before the first fork."""


def modules_to_preload(sink: object, transformation: Transformation) -> str:
    """Returns the value of PRELOAD. Omits the modules of a user's own sink: they may do anything when they are
    imported."""
    modules = [type(sink).__module__] if type(sink).__module__.startswith("pgsluice.") else []
    if transformation.rules.entries:
        modules.append("pyarrow.compute")
    return " ".join(modules)


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """The parameters of every task of a batch. Picklable."""

    nats: NatsSettings
    group: str
    worker: str
    writer: PartitionWriter
    ownership: Ownership
    exclusions: Exclusions
    transformation: Transformation
    id_prefix: str = ""
    checks_encoding: bool = False
    """True if the source may send bytes that are not UTF-8."""
    counts: bool = False
    """True if a task's figures are needed for metrics."""
    kafka: KafkaSourceSettings | None = None
    """The cluster of records that messages refer to."""

    def __call__(self, messages: SequenceRange) -> Iterator[TaskAnswer]:
        """Writes these messages."""
        share = _PartitionShare(messages, self)
        try:
            for body in self._written(messages, share):
                yield receipt_answer(share.advance(), body, share.report())
            yield receipt_answer(share.finish(), None, share.report(), share.figures)
        except RejectedChanges as rejected:
            yield receipt_answer(Covered(messages.lane), None, share.report(rejected.rejections))
        except PgsluiceError as error:
            yield error_answer(Covered(messages.lane), error)
        except MemoryError as error:  # there may be more the next time: Spark tries again
            raise MemoryError(place_of(error)) from None
        except Exception as error:  # noqa: BLE001  Spark prints what a task raises, and this one may quote a row
            yield error_answer(Covered(messages.lane), unexpected(error, "a task"))

    def _elsewhere(self) -> BodyElsewhere:
        if self.kafka is None:
            return unreadable_elsewhere
        from pgsluice.worker.kafka_source.range_reader import process_reader  # it needs an extra that few have

        return process_reader(self.kafka.cluster).body

    def _written(self, messages: SequenceRange, share: _PartitionShare) -> Iterator[bytes]:
        """Yields the receipt bodies of the sink."""
        connection = process_connection(self.nats, self.group)
        steps = TaskSteps(connection, self.worker)
        if messages.lane is Lane.COPIED:
            copied = share.copied_rows(SnapshotReader(connection))
            return steps.each_of(self.writer.write_copied(share.partition, steps.each_of(copied)))
        changes = share.changes(ChangeReader(connection, self.id_prefix, self._elsewhere()))
        return steps.each_of(self.writer.write(share.partition, steps.each_of(changes)))


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Warms up a Python process of Spark before its first batch, and periodically without batches: it connects, and
    returns freed memory. Picklable."""

    nats: NatsSettings
    group: str

    def __call__(self, _: int) -> Iterator[None]:
        with suppress(TransientError):  # it is only for speed; what is wrong will fail the first batch, with a better sentence
            process_connection(self.nats, self.group).ask(_is_connected)
        give_back_freed_memory()
        return iter(())


async def _is_connected(client: Client) -> None:
    await client.flush()


class _PartitionShare:
    """Decodes and transforms a partition's messages, and knows which part of the stream the sink has taken since the last
    receipt. Rules see what the source sent: the change stream's part of it, without what was taken out."""

    def __init__(self, messages: SequenceRange, task: PartitionTask) -> None:
        names = task.transformation.names
        self.partition = Partition(messages.first_sequence, messages.last_sequence, messages.partitions, messages.defines, names)
        self._lane = messages.lane
        self._ownership = task.ownership
        self._filter = DeadLetterFilter(task.exclusions, task.worker, task.transformation.truncates)
        self._transformation = task.transformation
        self._checks_encoding = task.checks_encoding
        self._writer = task.writer
        self._count = FigureCount() if task.counts else None
        self._covered = self._taken = messages.first_sequence - 1
        self._changes = 0
        self._commit_lsn = 0
        self._committed_at = 0
        self._after: Anchor | None = None
        self._anchor: Anchor | None = None

    def advance(self) -> Covered:
        """Returns the part that a receipt is for: what was taken since the one before."""
        chain = (_text(self._after), _text(self._anchor)) if self._changes else (None, None)
        first = self._covered + 1
        covered = Covered(self._lane, first, self._taken, self._changes, self._commit_lsn, self._committed_at, *chain)
        self._covered, self._changes, self._commit_lsn, self._committed_at = self._taken, 0, 0, 0
        return covered

    def finish(self) -> Covered:
        """Finishes the rest of the partition, when the sink has written everything."""
        self._taken = self.partition.last_sequence
        return self.advance()

    def report(self, rejections: Sequence[Rejection] = ()) -> TaskReport:
        """Returns the changes taken out since the call before."""
        return TaskReport(tuple(self._filter.take_letters()), tuple(rejections), tuple(self._filter.take_truncated()))

    @property
    def figures(self) -> TaskFigures | None:
        """Figures of the whole partition, when it is written; None when they are not wanted."""
        return None if self._count is None else self._count.figures

    def changes(self, reader: ChangeReader) -> Iterator[MessageChanges]:
        for body in reader.bodies(self.partition.first_sequence, self.partition.last_sequence):
            message = decode_changes(
                body.data, first_sequence=body.first_sequence, sequence=body.sequence, first_ordinal=body.first_ordinal
            )
            self._follow(body)
            self._taken = min(message.sequence, self.partition.last_sequence)
            self._changes += message.change_count
            for transaction in message.transactions:
                if transaction.commits:
                    self._commit_lsn, self._committed_at = transaction.commit_lsn, transaction.committed_at
            if self._count is not None:
                self._count.note_message(len(body.data), message.transactions)
            yield self._transformed(self._ownership.remainder(message), body.data)

    def _follow(self, body: Body) -> None:
        if self._anchor is not None:
            check_follows(body.first_sequence, body.after, self._anchor)
        if not self._changes:
            self._after = body.after
        self._anchor = body.anchor

    def _transformed(self, message: MessageChanges, body: bytes) -> MessageChanges:
        """Returns the message for the sink. Changes that a rule rejects are taken out, and with them later changes of
        their rows, which may have been fit: so the rest goes through the rules once more."""
        while True:
            message = self._filter.remainder(message, body)
            rejected = unreadable_changes(message) if self._checks_encoding else []
            if not rejected:
                transformed, rejected = self._transformation.apply(message)
                if not rejected:
                    if self._count is not None:
                        self._count.note_changes(message, transformed)
                    return transformed
            self._filter.reject(Rejection.of(message, row.change_index, refusal_of(row)) for row in rejected)

    def copied_rows(self, reader: SnapshotReader) -> Iterator[CopiedRows]:
        """A sink may load rows for good before the batch is committed. So the dead letters of rows that a rule rejects
        have to be stored first: raises RejectedChanges with all of them, and yields nothing after the first."""
        rejections: list[Rejection] = []
        for body in reader.bodies(self.partition.first_sequence, self.partition.last_sequence):
            table, data = split_snapshot_body(body.data)
            headers = body.headers
            self._taken = body.sequence
            if self._ownership.counts(table, headers.snapshot):
                self._changes += headers.rows
                copied = body.copied_rows(table, data)
                check_deletes(copied, self._writer)
                going, rejected = self._transformed_copied(copied, len(body.data))
                rejections += rejected
                yield from going if not rejections else ()
            elif not self._ownership.knows(table, headers.ledger_revision):
                # no cause: the next read of the ledger finds it
                raise TransientError(
                    f"the table state store does not contain the table of message {body.sequence} yet", "it is read again"
                )
        if rejections:
            raise RejectedChanges(rejections)

    def _transformed_copied(self, copied: CopiedRows, body_bytes: int) -> tuple[list[CopiedRows], list[Rejection]]:
        left = self._filter.copied_remainder(copied)
        transformed: list[CopiedRows] = []
        rejected = unreadable_copied(left) if self._checks_encoding else []
        if not rejected:
            for rows in split_deleted(left):
                going, refused = self._transformation.apply_copied(rows)
                transformed += going
                rejected += refused
        if self._count is not None:
            self._count.note_copied(body_bytes, left, transformed)
        following = [replace(rows, more_follow=True) for rows in transformed[:-1]] + transformed[-1:]
        return following, [Rejection(copied_position(copied.sequence, row.change_index), refusal_of(row)) for row in rejected]


def _text(anchor: Anchor | None) -> str | None:
    return None if anchor is None else str(anchor)
