"""A micro-batch on both sides of the Spark border: what a task does with messages, and what the driver makes of the answers.

A task is told which messages are its own. It fetches them with batched direct gets, decodes them, applies rules and routes, and
hands them to the sink's writer. What goes back are rows of RECEIPT_SCHEMA. Each says which part of the stream it covers, so that
the driver proves that nothing is missing and nothing is there twice before it commits. A row without a body covers what a sink
has no receipt for (chunks of a message that began in another partition); a row with an error says why the task stopped. Any row
may bring dead mail (``dead_mail``): changes that are not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pgsluice.rules.rule import RejectedRow
from pgsluice.rules.transformation import Transformation
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError
from pgsluice.shared.process.defect import TaskDefectError
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.position import Anchor
from pgsluice.shared.wire.snapshot_message import split_snapshot_body
from pgsluice.worker.batches.broker_connection import process_connection
from pgsluice.worker.batches.change_reader import Body, StreamReader
from pgsluice.worker.batches.message_chain import MessageChain, check_follows
from pgsluice.worker.batches.ownership import Ownership
from pgsluice.worker.batches.planning import SequenceRange, decode_ranges
from pgsluice.worker.batches.receipts import decode_error, encode_error
from pgsluice.worker.batches.snapshot_reader import SnapshotReader
from pgsluice.worker.batches.unreadable_rows import unreadable_changes, unreadable_copied
from pgsluice.worker.dead_letters.exclusions import Exclusions
from pgsluice.worker.dead_letters.filter import Diversion
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.dead_letters.task_report import DeadMail
from pgsluice.worker.sinks.sink import Applied, Partition, PartitionWriter, Receipt

_FIELDS = (
    ("copied", pa.bool_(), "boolean"),
    ("first_sequence", pa.int64(), "bigint"),
    ("last_sequence", pa.int64(), "bigint"),
    ("changes", pa.int64(), "bigint"),
    ("commit_lsn", pa.int64(), "bigint"),
    ("committed_at", pa.int64(), "bigint"),
    ("after", pa.string(), "string"),
    ("anchor", pa.string(), "string"),
    ("body", pa.binary(), "binary"),
    ("body_bytes", pa.int64(), "bigint"),
    ("dead_mail", pa.binary(), "binary"),
    ("error", pa.binary(), "binary"),
)
_ARROW_SCHEMA = pa.schema([(name, kind) for name, kind, _ in _FIELDS])
RECEIPT_SCHEMA = ", ".join(f"{name} {spelling}" for name, _, spelling in _FIELDS)
"""``body_bytes`` is the size of a body that is compressed, 0 of one that is not. ``after`` and ``anchor`` are those of the first
and the last message that the row covers, None where it covers none or an earlier version published them."""

COMPRESSED_FROM_BYTES = 32 * 1024
"""What Spark carries costs ten times what compressing it costs; a small body costs nothing either way."""


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """What every task of a batch is given. Picklable."""

    nats: NatsSettings
    group: str
    worker: str
    writer: PartitionWriter
    ownership: Ownership
    exclusions: Exclusions
    transformation: Transformation
    id_prefix: str = ""
    checks_encoding: bool = False
    """Whether the source may send bytes that are not UTF-8."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for ``mapInArrow``: rows of ``sequence_range.RANGE_SCHEMA`` in, rows of RECEIPT_SCHEMA out."""
        for messages in decode_ranges(batches):
            yield from self._write(messages)

    def _write(self, messages: SequenceRange) -> Iterator[pa.RecordBatch]:
        share = _PartitionShare(messages, self.ownership, Diversion(self.exclusions, self.worker), self)
        try:
            for body in self._written(messages, share):
                yield _row(*share.advance(), *pack_body(body), share.dead_mail().encode(), None)
            yield _row(*share.finish(), None, 0, share.dead_mail().encode(), None)
        except RejectedChanges as rejected:
            yield _row(*_nothing(messages), None, 0, share.dead_mail(rejected.rejections).encode(), None)
        except PgsluiceError as error:
            yield _row(*_nothing(messages), None, 0, None, encode_error(error))
        except Exception as error:  # noqa: BLE001  Spark prints what a task raises, and this one may quote a row
            raise TaskDefectError(error) from None

    def _written(self, messages: SequenceRange, share: _PartitionShare) -> Iterator[bytes]:
        """The receipt bodies of the sink."""
        connection = process_connection(self.nats, self.group)
        if messages.copied:
            return self.writer.write_copied(share.partition, share.copied_rows(SnapshotReader(connection)))
        return self.writer.write(share.partition, share.changes(StreamReader(connection, self.id_prefix)))


_Covered = tuple[bool, int, int, int, int, int, str | None, str | None]
"""The first columns of a row."""


def _nothing(messages: SequenceRange) -> _Covered:
    return (messages.copied, 0, 0, 0, 0, 0, None, None)


class _PartitionShare:
    """Decodes and transforms a partition's messages, and knows which part of the stream the sink has taken since the last
    receipt. Rules see what the source sent: the change stream's part of it, without what was taken out."""

    def __init__(self, messages: SequenceRange, ownership: Ownership, diversion: Diversion, task: PartitionTask) -> None:
        self.partition = Partition(messages.first_sequence, messages.last_sequence, messages.partitions)
        self._copied = messages.copied
        self._ownership = ownership
        self._diversion = diversion
        self._transformation = task.transformation
        self._checks_encoding = task.checks_encoding
        self._covered = self._taken = messages.first_sequence - 1
        self._changes = 0
        self._commit_lsn = 0
        self._committed_at = 0
        self._after: Anchor | None = None
        self._anchor: Anchor | None = None

    def advance(self) -> _Covered:
        """The first columns of a receipt for what was taken since the one before."""
        chain = (_text(self._after), _text(self._anchor)) if self._changes else (None, None)
        covered = (self._copied, self._covered + 1, self._taken, self._changes, self._commit_lsn, self._committed_at, *chain)
        self._covered, self._changes, self._commit_lsn, self._committed_at = self._taken, 0, 0, 0
        return covered

    def finish(self) -> _Covered:
        """The same for the rest of the partition, when the sink has written everything."""
        self._taken = self.partition.last_sequence
        return self.advance()

    def dead_mail(self, rejections: Sequence[Rejection] = ()) -> DeadMail:
        """What was taken out since the call before."""
        return DeadMail(tuple(self._diversion.take_letters()), tuple(rejections), tuple(self._diversion.take_truncated()))

    def changes(self, reader: StreamReader) -> Iterator[MessageChanges]:
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
            yield self._transformed(self._ownership.without_copied(message), body.data)

    def _follow(self, body: Body) -> None:
        if self._anchor is not None:
            check_follows(body.first_sequence, body.after, self._anchor)
        if not self._changes:
            self._after = body.after
        self._anchor = body.anchor

    def _transformed(self, message: MessageChanges, body: bytes) -> MessageChanges:
        """What goes to the sink. Changes that a rule rejects are taken out, and with them the later ones of their rows, which may
        have been fit: so the rest goes through the rules once more."""
        while True:
            message = self._diversion.remainder(message, body)
            rejected = unreadable_changes(message) if self._checks_encoding else []
            if not rejected:
                transformed, rejected = self._transformation.apply(message)
                if not rejected:
                    return transformed
            self._diversion.reject(Rejection.of(message, row.change_index, rule_refusal(row)) for row in rejected)

    def copied_rows(self, reader: SnapshotReader) -> Iterator[CopiedRows]:
        """A sink may load rows for good before the batch is committed. So the letters of rows that a rule rejects have to be
        there first: raises RejectedChanges with all of them, and yields nothing behind the first."""
        rejections: list[Rejection] = []
        for body in reader.bodies(self.partition.first_sequence, self.partition.last_sequence):
            table, data = split_snapshot_body(body.data)
            headers = body.headers
            self._taken = body.sequence
            if self._ownership.counts(table, headers.snapshot):
                self._changes += headers.rows
                restarts = headers.is_begin and headers.attempt > 1
                copied = CopiedRows(body.sequence, table, headers.snapshot, headers.rows, data, restarts)
                left = self._diversion.copied_remainder(copied)
                transformed: list[CopiedRows] = []
                rejected = unreadable_copied(left) if self._checks_encoding else []
                if not rejected:
                    transformed, rejected = self._transformation.apply_copied(left)
                rejections += [
                    Rejection(copied_position(copied.sequence, row.change_index), rule_refusal(row)) for row in rejected
                ]
                yield from transformed if not rejections else ()
            elif not self._ownership.knows(table, headers.ledger_revision):
                raise TransientError(
                    f"the ledger does not know yet whose the copied rows of message {body.sequence} are", "it is read again"
                )
        if rejections:
            raise RejectedChanges(rejections)


def _text(anchor: Anchor | None) -> str | None:
    return None if anchor is None else str(anchor)


def rule_refusal(row: RejectedRow) -> str:
    """The reason of a rejection."""
    return f"{row.rule}: {row.reason}"


def _row(*values: Any) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def pack_body(body: bytes) -> tuple[bytes, int]:
    """The columns ``body`` and ``body_bytes``."""
    if len(body) < COMPRESSED_FROM_BYTES:
        return body, 0
    return pa.compress(body, codec="zstd", asbytes=True), len(body)


def unpack_body(body: bytes, body_bytes: int) -> bytes:
    """The inverse of ``pack_body``."""
    return pa.decompress(body, body_bytes, codec="zstd", asbytes=True) if body_bytes else body


def read_dead_mail(rows: Iterable[Any]) -> list[DeadMail]:
    """What ``rows`` bring beside receipts. Raises the error that a task sent."""
    mail = []
    for row in rows:
        if row.error is not None:
            raise decode_error(bytes(row.error))
        if row.dead_mail is not None:
            mail.append(DeadMail.decode(bytes(row.dead_mail)))
    return mail


def read_receipts(rows: Iterable[Any], applied: Applied, rules: str = "", before: Anchor | None = None) -> Iterator[Receipt]:
    """The receipts in ``rows`` (of RECEIPT_SCHEMA, in partition order), which must go on in one of the streams after ``applied``.
    ``rules`` is the hash of the transformation that the tasks were given; ``before`` is that of ``MessageChain``.

    Raises the error that a task sent, TerminalError when the rows leave a gap or overlap, or HistoryError when their messages are
    not those that follow. Rows without a body extend the receipt before them, or the one after when they come first.
    """
    chain = MessageChain(applied, before)
    pending: Receipt | None = None
    begin = expected = changes = 0
    for row in rows:
        if row.error is not None:
            raise decode_error(bytes(row.error))
        if not expected:
            begin = expected = (applied.snapshot_sequence if row.copied else applied.sequence) + 1
        if row.first_sequence != expected:
            raise TerminalError(
                f"a micro-batch covers message {row.first_sequence} where {expected} was expected",
                "this is a defect of pgsluice; nothing was applied, please report it",
            )
        expected = row.last_sequence + 1
        chain.follow(row)
        if row.body is None:
            changes += row.changes
            if pending is not None:
                pending = replace(pending, last_sequence=row.last_sequence)
            continue
        if pending is not None:
            yield pending
            begin = pending.last_sequence + 1
        body = unpack_body(bytes(row.body), row.body_bytes)
        counted = row.changes + changes
        pending = Receipt(
            begin, row.last_sequence, counted, row.commit_lsn, row.committed_at, body, copied=row.copied, rules=rules
        )
        changes = 0
    if pending is not None:
        yield pending
