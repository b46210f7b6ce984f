"""The code of a Spark task for the webhook sink: it encodes lines and chooses the lane of each.

All changes of one key go by the same lane, whatever partition or batch they are in, and a table without a key goes by
one lane as a whole. A line about more than one key, a TRUNCATE, a definition or an update that changes the key, is a
barrier. Keys are compared as the server writes them: ``1.0`` and ``1.00`` are two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never
from zlib import crc32

from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import DELETE, CopiedRows, DefinitionChange, MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.sink import Partition
from pgsluice.worker.sinks.webhook.placed_lines import BARRIER, CHANGES, PARTS, LineSection


class ChosenLanes:
    """The lanes of a message's lines: ``first`` by change index, None for a change that is in no part; ``others`` holds those of
    a change's further lines, when it goes to several tables."""

    def __init__(self, message: MessageChanges, lanes: int, *, tells_definitions: bool = True) -> None:
        self.first: list[int | None] = [None] * message.change_count
        self.others: dict[int, list[int]] = {}
        for part in message.parts:
            match part:
                case TableChanges():
                    for index, lane in zip(part.change_indexes, _lanes_of_rows(part, lanes), strict=True):
                        self._add(index, lane)
                case Truncation():
                    for _ in part.tables:
                        self._add(part.change_index, BARRIER)
                case DefinitionChange():
                    if tells_definitions:
                        self._add(part.change_index, BARRIER)
                case unreachable:
                    assert_never(unreachable)

    def _add(self, index: int, lane: int) -> None:
        if self.first[index] is None:
            self.first[index] = lane
        else:
            self.others.setdefault(index, []).append(lane)


def lane_of_copied(copied: CopiedRows, lanes: int) -> int:
    """Returns one lane for all rows of the message: a copy has a key once, so the rows' sequence does not matter, and
    together they fill requests."""
    if copied.restarts:
        return BARRIER
    seed = _seed(copied.table)
    return (crc32(b"%d" % copied.sequence, seed) if copied.table.key else seed) % lanes


def _lanes_of_rows(changes: TableChanges, lanes: int) -> list[int]:
    table = changes.table
    seed = _seed(table)
    if not table.key:
        return [seed % lanes] * len(changes)
    new_keys = zip(*[changes.new[column] for column in table.key], strict=True)
    if changes.old is None or changes.old_kinds is None:
        return [_lane(key, seed, lanes) for key in new_keys]
    old_keys = zip(*[changes.old[column] for column in table.key], strict=True)
    chosen = []
    for operation, kind, new_key, old_key in zip(changes.operations, changes.old_kinds, new_keys, old_keys, strict=True):
        if operation == DELETE:
            chosen.append(_lane(old_key, seed, lanes))
        elif kind == NO_OLD_ROW or _is_same(new_key, old_key):
            chosen.append(_lane(new_key if kind == NO_OLD_ROW else old_key, seed, lanes))
        else:
            chosen.append(BARRIER)
    return chosen


def _is_same(new_key: tuple[Value, ...], old_key: tuple[Value, ...]) -> bool:
    return all(new is UNCHANGED or new == old for new, old in zip(new_key, old_key, strict=True))


def _seed(table: Table) -> int:
    """Returns the seed by OID: a table that is renamed keeps its lanes."""
    return crc32(b"%d" % table.oid)


def _lane(key: Iterable[Value], seed: int, lanes: int) -> int:
    return crc32(b"\0".join([value if isinstance(value, bytes) else b"" for value in key]), seed) % lanes


@dataclass(frozen=True, slots=True)
class LaneWriter:
    """Receipt bodies are sections of ``placed_lines``. ``lanes`` is how many there are."""

    lanes: int
    form: LineEncoding

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return receipt_bodies((self._section(message).encode(), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies((section.encode(), is_last) for section, is_last in self._copied_sections(copied))

    def _section(self, message: MessageChanges) -> LineSection:
        section = LineSection(message.sequence, CHANGES)
        texts: list[bytes] = []
        for (slot, lane, others), line in zip(self._slots(message), self.form.encode(message), strict=True):
            if line.count(b"\n") == 1:
                section.numbers.append(slot << PARTS)
                section.lanes.append(lane)
                texts.append(line)
                continue
            pieces = line.splitlines(keepends=True)
            lanes = [lane, *others]
            section.numbers += [(slot << PARTS) + part for part in range(len(pieces))]
            section.lanes += lanes if len(lanes) == len(pieces) else [BARRIER] * len(pieces)
            texts += pieces
        section.texts = texts
        return section

    def _slots(self, message: MessageChanges) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Yields, for each element of the encoded lines, its number, without its last PARTS bits, its lane, and the
        lanes of its further lines. Begin and commit of each transaction have numbers, requested or not."""
        chosen = ChosenLanes(message, self.lanes, tells_definitions=self.form.tells_definitions)
        for before, transaction in enumerate(message.transactions):
            offset = 2 * before + 1
            if self.form.transactions and transaction.begins:
                yield transaction.first_change + offset - 1, BARRIER, ()
            for index in range(transaction.first_change, transaction.end_change):
                lane = chosen.first[index]
                if lane is not None:
                    yield index + offset, lane, chosen.others.get(index, ())
            if self.form.transactions and transaction.commits:
                yield transaction.end_change + offset, BARRIER, ()

    def _copied_sections(self, copied: Iterable[CopiedRows]) -> Iterator[tuple[LineSection, bool]]:
        """Yields sections, each with whether it is the last of its message: a message can come in parts, for several
        tables."""
        part = 0
        for rows in copied:
            lines = self.form.encode_copied(rows)
            numbers = [rows.row_number(row) << PARTS for row in range(rows.rows)] or [0] * len(lines)
            track = 1 + crc32(b"%d %s" % (part, rows.table.qualified_name.encode())) // 2
            lane = lane_of_copied(rows, self.lanes)
            yield LineSection(rows.sequence, track, numbers, [lane] * len(lines), lines), not rows.more_follow
            part = part + 1 if rows.more_follow else 0
