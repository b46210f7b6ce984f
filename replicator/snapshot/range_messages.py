"""The messages of one page range, a function of its rows: pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replicator.snapshot.orders import CopyOrder, RangeOrder
from shared.message import Chunk
from shared.snapshot_message import SnapshotHeaders


class Piece(NamedTuple):
    """COPY text: ``rows`` whole rows, each ended by a line feed. ``is_last``: the range has no more."""

    rows: int
    data: bytes
    is_last: bool


class RangeMessages:
    """Numbers the messages and counts what is in them; to be given every piece of the range in order."""

    def __init__(self, order: CopyOrder, range_order: RangeOrder) -> None:
        self._order = order
        self._range_order = range_order
        self._number = 0
        self.rows = 0
        self.bytes = 0

    def next(self, piece: Piece) -> Iterator[tuple[SnapshotHeaders, bytes]]:
        """One message, or several chunks when the piece's body is too large for one; a body counts with its last chunk."""
        body, size = self._range_order.head + piece.data, self._order.chunk_bytes
        count = max(1, -(-len(body) // size))
        for index in range(1, count + 1):
            chunk = Chunk(index, count)
            if chunk.is_last:
                self.rows += piece.rows
                self.bytes += len(piece.data)
            self._number += 1
            headers = SnapshotHeaders(
                snapshot=self._order.snapshot_id,
                oid=self._range_order.pages.table_oid,
                attempt=self._range_order.attempt,
                range_number=self._range_order.pages.number,
                number=self._number,
                rows=piece.rows if chunk.is_last else 0,
                range_rows=self.rows,
                range_bytes=self.bytes,
                is_range_end=piece.is_last and chunk.is_last,
                chunk=chunk,
                ledger_revision=self._range_order.ledger_revision,
            )
            yield headers, body if count == 1 else body[(index - 1) * size : index * size]
