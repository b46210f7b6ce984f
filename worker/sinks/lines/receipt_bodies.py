"""Receipts that hold the output itself, for sinks whose delivery is STREAMED."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
