"""The body of a receipt: a piece of output, or where a task has left it.

A piece is what stands in the output: whole lines, whole compressed members, whole row streams. So a file may end behind any.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

INLINE_BYTES = 64 * 1024  # below this a file of its own costs a batch more time than the bytes cost the driver's memory

_INLINE = b"\0"
_STORED = b"\1"


@dataclass(frozen=True, slots=True)
class InlinePiece:
    data: bytes

    def encode(self) -> bytes:
        return _INLINE + self.data

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """``size`` bytes from ``offset`` on of the file ``name`` in the scratch directory."""

    name: str
    offset: int
    size: int

    def encode(self) -> bytes:
        return _STORED + orjson.dumps([self.name, self.offset, self.size])


Piece = InlinePiece | StoredPiece


def decode_piece(body: bytes) -> Piece:
    """The inverse of ``encode``."""
    if body[:1] == _INLINE:
        return InlinePiece(body[1:])
    name, offset, size = orjson.loads(body[1:])
    return StoredPiece(name, offset, size)
