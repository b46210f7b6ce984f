"""What a Spark task does for the webhook sink: encodes lines and says by which lane each goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from shared.changes import CopiedRows, MessageChanges
from worker.sinks.line_shape import LineShape
from worker.sinks.receipt_bodies import receipt_bodies
from worker.sinks.sink import Partition
from worker.sinks.webhook.lane_choice import ChosenLanes, lane_of_copied
from worker.sinks.webhook.placed_lines import BARRIER, CHANGES, PARTS, Section


@dataclass(frozen=True, slots=True)
class LaneWriter:
    """Receipt bodies are sections of ``placed_lines``. ``lanes`` is how many there are."""

    lanes: int
    transactions: bool
    shape: LineShape

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return receipt_bodies((self._section(message).encode(), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies((section.encode(), is_last) for section, is_last in self._copied_sections(copied))

    def _section(self, message: MessageChanges) -> Section:
        section = Section(message.sequence, CHANGES)
        texts: list[bytes] = []
        lines = self.shape.encode(message, transactions=self.transactions)
        for (slot, lane, others), line in zip(self._slots(message), lines, strict=True):
            section.numbers.append(slot << PARTS)
            section.lanes.append(lane)
            if not others:
                texts.append(line)
                continue
            section.numbers += [(slot << PARTS) + part for part in range(1, len(others) + 1)]
            section.lanes += others
            texts += line.splitlines(keepends=True)
        section.texts = texts
        return section

    def _slots(self, message: MessageChanges) -> Iterator[tuple[int, int, Sequence[int]]]:
        """For each element of the encoded lines its number, without its last PARTS bits, its lane, and the lanes of its further
        lines. Begin and commit of each transaction have numbers of their own, asked for or not."""
        chosen = ChosenLanes(message, self.lanes)
        for before, transaction in enumerate(message.transactions):
            offset = 2 * before + 1
            if self.transactions and transaction.begins:
                yield transaction.first_change + offset - 1, BARRIER, ()
            for index in range(transaction.first_change, transaction.end_change):
                lane = chosen.first[index]
                if lane is not None:
                    yield index + offset, lane, chosen.others.get(index, ())
            if self.transactions and transaction.commits:
                yield transaction.end_change + offset, BARRIER, ()

    def _copied_sections(self, copied: Iterable[CopiedRows]) -> Iterator[tuple[Section, bool]]:
        """Each with whether it is the last of its message: a message may come in parts, for several tables."""
        part = 0
        for rows in copied:
            lines = self.shape.encode_copied(rows)
            numbers = [rows.row_number(row) << PARTS for row in range(rows.rows)] or [0] * len(lines)
            track = 1 + crc32(b"%d %s" % (part, rows.table.qualified_name.encode())) // 2
            lane = lane_of_copied(rows, self.lanes)
            yield Section(rows.sequence, track, numbers, [lane] * len(lines), lines), not rows.more_follow
            part = part + 1 if rows.more_follow else 0
