"""Lines as output: which JSON stands on them, how they fill receipts, and how receipts are written out."""

from __future__ import annotations

import enum
import os
import select
from collections.abc import Iterable, Iterator
from typing import assert_never

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.worker.sinks.lines import json_lines, pg_flo_lines


class LineShape(enum.Enum):
    """``value`` is how the option spells it."""

    JSON = "json"
    PG_FLO = "pg-flo"

    def encode(self, message: MessageChanges, *, transactions: bool, column_ids: bool = False) -> list[bytes]:
        """As ``json_lines.encode_lines``. pg_flo's shape has neither lines for transactions nor column ids."""
        match self:
            case LineShape.JSON:
                return json_lines.encode_lines(message, transactions=transactions, column_ids=column_ids)
            case LineShape.PG_FLO:
                return pg_flo_lines.encode_lines(message)
            case unreachable:
                assert_never(unreachable)

    def encode_copied(self, copied: CopiedRows, *, column_ids: bool = False) -> list[bytes]:
        """As ``json_lines.encode_copied``."""
        match self:
            case LineShape.JSON:
                return json_lines.encode_copied(copied, column_ids=column_ids)
            case LineShape.PG_FLO:
                return pg_flo_lines.encode_copied(copied)
            case unreachable:
                assert_never(unreachable)


RECEIPT_BYTES = 1024 * 1024  # large enough to make Spark's cost per row disappear, small enough to hold several in memory


def receipt_bodies(pieces_of_messages: Iterable[tuple[list[bytes], bool]]) -> Iterator[bytes]:
    """Bodies of about RECEIPT_BYTES, at least one. Each message's pieces come with whether they are its last: a message is never
    cut, so a large one makes a large body."""
    pieces: list[bytes] = []
    size, is_covered = 0, False  # covered: every message taken so far is in a body
    for message_pieces, is_whole in pieces_of_messages:
        pieces += message_pieces
        size += sum(map(len, message_pieces))
        is_covered = is_whole and size >= RECEIPT_BYTES
        if is_covered:
            yield b"".join(pieces)
            pieces, size = [], 0
    if not is_covered:
        yield b"".join(pieces)


def write_all(descriptor: int, data: bytes) -> None:
    """Returns when the operating system has taken all of ``data``, however long the reader takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever made the pipe may have made it non-blocking
            select.select([], [descriptor], [])
