"""JSON lines in tasks: encoded and compressed, in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.changes import CopiedRows, MessageChanges
from worker.sinks.file.compression import Compression
from worker.sinks.file.scratch import ScratchWriter
from worker.sinks.line_shape import LineShape
from worker.sinks.receipt_bodies import receipt_bodies
from worker.sinks.sink import Partition


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Receipt bodies are pieces (``piece``) of about a mebibyte of lines each, before compression."""

    scratch: ScratchWriter
    compression: Compression
    transactions: bool
    shape: LineShape

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return self._receipts((self.shape.encode(message, transactions=self.transactions), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return self._receipts((self.shape.encode_copied(rows), not rows.more_follow) for rows in copied)

    def _receipts(self, lines: Iterable[tuple[list[bytes], bool]]) -> Iterator[bytes]:
        return self.scratch.receipts(map(self.compression.compress, receipt_bodies(lines)))
