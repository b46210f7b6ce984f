"""JSON lines on their way from a task to the driver: each with the lane it goes by, and its place.

A place is a line's position in the stream: the message's sequence, and a number that grows from line to line within the
message. It depends on the message alone, not on how partitions, batches or requests are cut, nor on which other changes
were left out. Rows of one copied message can go to several tables, one after the other: places grow within each of
these tracks.

A receipt's body is a row of sections, one for each message (or track of one) that has lines: a header (sequence, track,
number of lines), then the lanes, the numbers and the lengths of all its lines, then their text. All integers are
little-endian.

The driver reads other facts of a line from its text (``read_line``), in any shape.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from pgsluice.shared.wire.position import format_lsn
from pgsluice.worker.sinks.lines.line_fields import line_fields


@dataclass(frozen=True, slots=True)
class LineFacts:
    """``operation`` is as in JSON lines: READ for a copied row. ``position`` is "" without one. ``commit_lsn`` is ""
    except in a transaction's begin and commit. ``row`` is equal for lines about the same row; in a table without a key,
    about the same table."""

    operation: str
    position: str
    commit_lsn: str
    row: bytes


_NO_KEY: dict[str, list[str]] = {"Columns": []}
"""The key of a definition, which concerns every row."""


def read_line(text: bytes) -> LineFacts:
    content = line_fields(text)
    if "_operation" in content:  # first: the other names are columns, which may have any other name
        return _of_flat(content)
    if "op" in content:
        return _of_debezium(content)
    return _of_pg_flo(content) if "Type" in content else _of_ours(content)


def _of_ours(line: dict[str, Any]) -> LineFacts:
    row = orjson.dumps([line.get("schema"), line.get("table"), line.get("key")])
    return LineFacts(line["operation"], line.get("position") or "", line.get("commit_lsn", ""), row)


def _of_pg_flo(line: dict[str, Any]) -> LineFacts:
    values = line.get("NewTuple") or line.get("OldTuple") or {}
    key = [values.get(name) for name in line.get("ReplicationKey", _NO_KEY)["Columns"]]
    position = line["Position"] or ""
    is_copied = line["Type"] == "INSERT" and not position
    return LineFacts("READ" if is_copied else line["Type"], position, "", orjson.dumps([line["Schema"], line["Table"], key]))


def _of_flat(line: dict[str, Any]) -> LineFacts:
    """Reads a flat line, which does not name the key's columns, so two lines of one table are treated as about the same
    row."""
    return LineFacts(line["_operation"], line.get("_position") or "", "", orjson.dumps([line["_schema"], line["_table"]]))


_DEBEZIUM_OPERATIONS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "t": "TRUNCATE", "r": "READ"}


def _of_debezium(line: dict[str, Any]) -> LineFacts:
    """Reads a Debezium line, like ``_of_flat``. A row's truncation comes with the copy when its ``sequence`` has no
    number."""
    source, operation = line["source"], _DEBEZIUM_OPERATIONS[line["op"]]
    ordinal = orjson.loads(source["sequence"])[1]
    position = "" if ordinal is None else f"{format_lsn(source['lsn'])}:{ordinal}"
    operation = "RESTART" if operation == "TRUNCATE" and not position else operation
    return LineFacts(operation, position, "", orjson.dumps([source["schema"], source["table"]]))


BARRIER = 0xFFFF
"""The lane of a line that everything before it must precede, and everything after it follow, on all lanes."""

PARTS = 20
"""Bits of a line's number for the lines of one change (it has one for each table that it goes to)."""

CHANGES = 0
"""The track of changes. Those of copied rows are other numbers."""

_HEADER = struct.Struct("<qII")


class PlacedLine(NamedTuple):
    """``text`` is one JSON object and a line feed. ``lane`` is BARRIER or counts from 0."""

    sequence: int
    track: int
    number: int
    lane: int
    text: bytes

    @property
    def place(self) -> tuple[int, int]:
        return self.sequence, self.number


@dataclass(slots=True)
class LineSection:
    """The lines of one message and track in order, as columns."""

    sequence: int
    track: int
    numbers: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    texts: Sequence[bytes] = field(default_factory=list)

    def encode(self) -> list[bytes]:
        """Returns pieces of a receipt's body; none when there are no lines."""
        count = len(self.texts)
        if not count:
            return []
        return [
            _HEADER.pack(self.sequence, self.track, count),
            struct.pack(f"<{count}H", *self.lanes),
            struct.pack(f"<{count}Q", *self.numbers),
            struct.pack(f"<{count}I", *map(len, self.texts)),
            *self.texts,
        ]


def decode_sections(body: bytes) -> Iterator[PlacedLine]:
    """Yields the lines of a receipt's body in order."""
    offset = 0
    while offset < len(body):
        sequence, track, count = _HEADER.unpack_from(body, offset)
        offset += _HEADER.size
        columns = []
        for letter in "HQI":
            column = struct.Struct(f"<{count}{letter}")
            columns.append(column.unpack_from(body, offset))
            offset += column.size
        lanes, numbers, lengths = columns
        ends = list(accumulate(lengths, initial=offset))
        for number, lane, begin, end in zip(numbers, lanes, ends[:-1], ends[1:], strict=True):
            yield PlacedLine(sequence, track, number, lane, body[begin:end])
        offset = ends[-1]
