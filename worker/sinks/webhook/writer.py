"""What a Spark task does for the webhook sink: encodes lines and says by which lane each goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.changes import CopiedRows, MessageChanges
from worker.sinks.json_lines import encode_copied, encode_lines
from worker.sinks.receipt_bodies import receipt_bodies
from worker.sinks.sink import Partition
from worker.sinks.webhook.lane_choice import lane_of_copied, lanes_of
from worker.sinks.webhook.placed_lines import BARRIER, PARTS, Section


@dataclass(frozen=True, slots=True)
class LaneWriter:
    """Receipt bodies are sections of ``placed_lines``. ``lanes`` is how many there are."""

    lanes: int
    transactions: bool

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return receipt_bodies((self._section(message).encode(), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies((section.encode(), is_last) for section, is_last in self._copied_sections(copied))

    def _section(self, message: MessageChanges) -> Section:
        section = Section(message.sequence)
        texts: list[bytes] = []
        lines = encode_lines(message, transactions=self.transactions)
        for (slot, lane), line in zip(self._slots(message), lines, strict=True):
            objects = line.splitlines(keepends=True) if lane == BARRIER else [line]
            section.numbers += [(slot << PARTS) + part for part in range(len(objects))]
            section.lanes += [lane] * len(objects)
            texts += objects
        section.texts = texts
        return section

    def _slots(self, message: MessageChanges) -> Iterator[tuple[int, int]]:
        """For each line of ``encode_lines`` its number, without its last PARTS bits, and its lane. Begin and commit of each
        transaction have numbers of their own, asked for or not."""
        lanes = lanes_of(message, self.lanes)
        for before, transaction in enumerate(message.transactions):
            first, end = transaction.first_change + 2 * before + 1, transaction.end_change + 2 * before + 1
            if self.transactions and transaction.begins:
                yield first - 1, BARRIER
            for slot, lane in zip(range(first, end), lanes[transaction.first_change : transaction.end_change], strict=True):
                if lane is not None:
                    yield slot, lane
            if self.transactions and transaction.commits:
                yield end, BARRIER

    def _copied_sections(self, copied: Iterable[CopiedRows]) -> Iterator[tuple[Section, bool]]:
        """Each with whether it is the last of its message: a message may come in parts, whose rows are numbered through."""
        rows = 0
        for part in copied:
            lines = encode_copied(part)
            numbers = [(rows + row) << PARTS for row in range(len(lines))]
            yield Section(part.sequence, numbers, [lane_of_copied(part, self.lanes)] * len(lines), lines), not part.more_follow
            rows = rows + len(lines) if part.more_follow else 0
