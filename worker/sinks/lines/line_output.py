"""Lines as output: how they fill receipts, and how receipts are written out."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator

RECEIPT_BYTES = 1024 * 1024  # large enough to make Spark's cost per row disappear, small enough to hold several in memory


def receipt_bodies(pieces_of_messages: Iterable[tuple[list[bytes], bool]], head: bytes = b"") -> Iterator[bytes]:
    """Yields bodies of about RECEIPT_BYTES, at least one, each of which begins with ``head``. Each message's pieces
    come with whether they are its last: a message is never cut, so a large one makes a large body."""
    pieces = [head]
    size, is_covered = 0, False  # covered: every message taken so far is in a body
    for message_pieces, is_whole in pieces_of_messages:
        pieces += message_pieces
        size += sum(map(len, message_pieces))
        is_covered = is_whole and size >= RECEIPT_BYTES
        if is_covered:
            yield b"".join(pieces)
            pieces, size = [head], 0
    if not is_covered:
        yield b"".join(pieces)


WRITE_BYTES = 64 * 1024
"""Bytes that a pipe accepts without a reader (pipe(7)): a write of more needs a reader that moves."""


def write_all(descriptor: int, data: bytes, taken: Callable[[], None] = lambda: None) -> None:
    """Returns when the operating system has taken all of ``data``, however long the reader takes; ``taken`` is called after each
    WRITE_BYTES at most. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest[:WRITE_BYTES]) :]
            taken()
        except BlockingIOError:  # the creator of the pipe may have made it non-blocking
            select.select([], [descriptor], [])
