"""What a Spark task does for the NATS sink: lines, and for each its subject and its id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Truncation,
)
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.message import WHOLE, cut
from pgsluice.shared.wire.position import Position
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.lines.definition_fields import concerned_name
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.nats.outgoing import (
    CopiedPlace,
    Ends,
    Section,
    change_id,
    chunk_id,
    copied_id,
    place_of,
    replay_id,
    with_start,
)
from pgsluice.worker.sinks.nats.subject_pattern import SubjectPattern
from pgsluice.worker.sinks.sink import Partition

MOST_CHUNKS = 500
"""Of one line: all of them are in one atomic batch."""

_OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


class _Subjects:
    """The subjects of a message's lines, by change index; empty for a change that is in no part."""

    def __init__(self, message: MessageChanges, pattern: SubjectPattern, *, tells_definitions: bool) -> None:
        self.of_change: list[tuple[bytes, ...]] = [()] * message.change_count
        for part in message.parts:
            match part:
                case TableChanges(table=table):
                    by_operation = {
                        operation: (pattern.subject(table.schema, table.name, name),) for operation, name in _OPERATIONS.items()
                    }
                    for index, operation in zip(part.change_indexes, part.operations, strict=True):
                        self.of_change[index] += by_operation[operation]
                case Truncation():
                    for table in part.tables:
                        self.of_change[part.change_index] += (pattern.subject(table.schema, table.name, "truncate"),)
                case DefinitionChange():
                    if tells_definitions:
                        self.of_change[part.change_index] += (pattern.subject(*concerned_name(part.definition), "ddl"),)
                case unreachable:
                    assert_never(unreachable)


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """``start`` are the places after which to go on, of changes and of copied rows, "" for the beginning. ``most_bytes`` is what
    one message takes; ``cuts`` whether what is larger goes in chunks."""

    form: LineEncoding
    pattern: SubjectPattern
    most_bytes: int
    cuts: bool
    start: str = ""
    copied_start: str = ""
    is_replay: bool = False

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Raises RejectedChanges for lines that are too large; then nothing of the partition is yielded behind the first."""
        place = place_of(self.start) if self.start else None
        if self.is_replay:
            assert not isinstance(place, Position)
            left = (message for message in messages if place is None or message.sequence > place[0])
            return self._bodies(self.start, (self._section(message, None) for message in left))
        assert place is None or isinstance(place, Position)
        return self._bodies(self.start, (self._section(message, place) for message in messages))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """As ``write``."""
        place = place_of(self.copied_start) if self.copied_start else None
        assert not isinstance(place, Position)
        return self._bodies(self.copied_start, self._copied_sections(copied, place))

    def _bodies(self, start: str, sections: Iterable[tuple[Section, list[Rejection], bool]]) -> Iterator[bytes]:
        rejections: list[Rejection] = []

        def pieces() -> Iterator[tuple[list[bytes], bool]]:
            for section, rejected, is_whole in sections:
                rejections.extend(rejected)
                yield ([] if rejections else section.encode()), is_whole

        for body in receipt_bodies(pieces()):
            if rejections:
                break
            yield with_start(start, [body])
        if rejections:
            raise RejectedChanges(rejections)

    def _section(self, message: MessageChanges, start: Position | None) -> tuple[Section, list[Rejection], bool]:
        section, rejected = Section(), list[Rejection]()
        subjects = _Subjects(message, self.pattern, tells_definitions=self.form.tells_definitions).of_change
        lines = iter(self.form.encode(message))
        for transaction in message.transactions:
            last = -1
            for index in range(transaction.first_change, transaction.end_change):
                if not subjects[index]:
                    continue
                line, position = next(lines), transaction.position(index)
                if start is not None and position <= start:
                    continue
                name = replay_id(message.sequence) if self.is_replay else change_id(position)
                if len(line) <= self.most_bytes and line.count(b"\n") == 1:
                    section.add(subjects[index][0], name, line[:-1], Ends.CHANGE)
                elif not self._add_pieces(section, subjects[index], name, line):
                    rejected.append(Rejection(position, self._too_large(len(line))))
                last = len(section.ends) - 1
            if transaction.commits and last >= 0:
                section.ends[last] = Ends.TRANSACTION
        return section, rejected, True

    def _add_pieces(self, section: Section, subjects: Sequence[bytes], name: bytes, line: bytes) -> bool:
        """A change of several lines, or one that is too large for a message. False when it cannot be published."""
        pieces = line.splitlines()
        if len(subjects) != len(pieces):  # a changed key is told as a deletion and an insertion
            subjects = [_renamed(subjects[0], "delete"), _renamed(subjects[0], "insert")] * (len(pieces) // 2)
        before = len(section.ends)
        for number, (subject, piece) in enumerate(zip(subjects, pieces, strict=True)):
            if not self._add_chunks(section, subject, b"%b/%d" % (name, number) if number else name, piece):
                return False
        section.ends[before:] = bytes([Ends.NOTHING] * (len(section.ends) - before - 1) + [Ends.CHANGE])
        return True

    def _add_chunks(self, section: Section, subject: bytes, message_id: bytes, data: bytes) -> bool:
        if len(data) > self.most_bytes * (MOST_CHUNKS if self.cuts else 1):
            return False
        for chunk, piece in cut(data, self.most_bytes):
            if chunk == WHOLE:
                section.add(subject, message_id, piece, Ends.CHANGE)
            else:
                header = b"Pgsluice-Chunk:%b\r\n" % str(chunk).encode()
                section.add(subject, chunk_id(message_id, chunk.index), piece, Ends.NOTHING, header)
        return True

    def _copied_sections(
        self, copied: Iterable[CopiedRows], start: CopiedPlace | None
    ) -> Iterator[tuple[Section, list[Rejection], bool]]:
        track = 0
        for rows in copied:
            yield *self._copied_section(rows, track, start), not rows.more_follow
            track = track + 1 if rows.more_follow else 0

    def _copied_section(self, rows: CopiedRows, track: int, start: CopiedPlace | None) -> tuple[Section, list[Rejection]]:
        section, rejected = Section(), list[Rejection]()
        operation = "restart" if rows.restarts else "read"
        if rows.restarts and not self.form.tells_definitions:
            operation = "truncate"
        subject = self.pattern.subject(rows.table.schema, rows.table.name, operation)
        for row, line in enumerate(self.form.encode_copied(rows)):
            place = rows.sequence, track, row
            if start is not None and place <= start:
                continue
            if not self._add_chunks(section, subject, copied_id(place), line[:-1]):
                position = copied_position(rows.sequence, rows.row_number(row))
                rejected.append(Rejection(position, self._too_large(len(line))))
            else:
                section.ends[-1] = Ends.TRANSACTION
        return section, rejected

    def _too_large(self, size: int) -> str:
        if self.cuts:
            return f"its line of {size} bytes is more than {MOST_CHUNKS} messages of NATS hold"
        return f"its line of {size} bytes is larger than a message of NATS ({self.most_bytes}); see nats-large-messages"


def _renamed(subject: bytes, operation: str) -> bytes:
    """Of an update's subject; where the pattern does not name the operation it stays."""
    tokens = [operation.encode() if token == b"update" else token for token in subject.split(b".")]
    return b".".join(tokens)
