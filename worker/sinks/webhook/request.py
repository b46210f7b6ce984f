"""Which lines travel together, and what such a request looks like.

The key of a request names the worker, the first and the last of its changes, and a digest of its body: the same request has the
same key whenever it is sent again, by this process or a successor, and two requests that differ in anything never share one.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.sinks.webhook.line_facts import read_line
from worker.sinks.webhook.placed_lines import BARRIER, PARTS, PlacedLine

DIGEST_BYTES = 8  # of SHA-256; a collision would need the same worker and positions too


class Format(enum.StrEnum):
    """``value`` is how the option spells it."""

    ARRAY = "array"
    """A JSON array of the objects."""
    LINES = "lines"
    """One object on each line."""
    SINGLE = "single"
    """One object, one request for each change."""

    @property
    def content_type(self) -> str:
        return "application/x-ndjson" if self is Format.LINES else "application/json"

    def body(self, lines: Sequence[PlacedLine]) -> bytes:
        texts = [line.text for line in lines]
        match self:
            case Format.ARRAY:
                return b"[" + b",".join(texts) + b"]"
            case Format.LINES:
                return b"".join(texts)
            case Format.SINGLE:
                (text,) = texts
                return text


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """Most lines and bytes of one request; a line that is larger goes alone."""

    lines: int
    bytes: int


class RequestCutter:
    """Gathers the lines of each lane until they fill a request.

    Where requests are cut depends on the lines since the last ``flush`` and on the settings alone.
    """

    def __init__(self, lanes: int, limit: RequestLimit) -> None:
        self._limit = limit
        self._open: list[list[PlacedLine]] = [[] for _ in range(lanes)]
        self._bytes = [0] * lanes

    def add(self, lane: int, line: PlacedLine) -> list[PlacedLine]:
        """The request that is full now, without or with ``line``; empty when there is none."""
        size = len(line.text)
        full: list[PlacedLine] = []
        if self._open[lane] and self._bytes[lane] + size > self._limit.bytes:
            full = self._take(lane)
        self._open[lane].append(line)
        self._bytes[lane] += size
        return full or (self._take(lane) if len(self._open[lane]) == self._limit.lines else full)

    @property
    def is_empty(self) -> bool:
        return not any(self._open)

    def flush(self) -> Iterator[tuple[int, list[PlacedLine]]]:
        """What is left of each lane that has lines."""
        for lane, lines in enumerate(self._open):
            if lines:
                yield lane, self._take(lane)

    def _take(self, lane: int) -> list[PlacedLine]:
        lines, self._open[lane], self._bytes[lane] = self._open[lane], [], 0
        return lines


def request_key(group: str, worker: str, lines: Sequence[PlacedLine], body: bytes) -> str:
    """``orders/webhook/16/B374D848:3-16/B374D848:9/1f0c…``: no full stop, which separates what is signed."""
    first, last = change_name(lines[0]), change_name(lines[-1])
    span = first if len(lines) == 1 else f"{first}-{last}"
    return f"{group}/{worker}/{span}/{hashlib.sha256(body).hexdigest()[: 2 * DIGEST_BYTES]}"


def change_name(line: PlacedLine) -> str:
    """The change's position, or what takes its place for a copied row and for a transaction's begin and commit."""
    facts = read_line(line.text)
    if facts.position:
        return facts.position
    if facts.commit_lsn:
        return f"{facts.commit_lsn}:{facts.operation.lower()}"
    return f"copy:{line.sequence}:{(line.number >> PARTS) + 1}"


def is_barrier(line: PlacedLine) -> bool:
    return line.lane == BARRIER
