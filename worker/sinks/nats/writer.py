"""The code of a Spark task for the NATS sink: lines, each with its subject and its id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    UPDATE,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    TableChanges,
    Transaction,
    Truncation,
)
from pgsluice.shared.wire.dead_letter import copied_position
from pgsluice.shared.wire.message import WHOLE, cut
from pgsluice.shared.wire.position import Position, format_lsn
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.lines.definition_fields import concerned_name
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.nats.outgoing import (
    CopiedPlace,
    Ends,
    MessageSection,
    chunk_id,
    copied_id,
    encode_start,
    place_of,
    replay_id,
)
from pgsluice.worker.sinks.nats.subject_pattern import SubjectPattern
from pgsluice.worker.sinks.nats.whole_transactions import WholeTransactions
from pgsluice.worker.sinks.sink import Partition

MOST_CHUNKS = 500
"""Limit for one line: all its chunks are in one atomic batch."""

ROWS_TOGETHER = 250
ROWS_TOGETHER_BYTES = 1024 * 1024
"""Size of copied rows in a block: together with another row in chunks they must fit into a batch."""

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
class _Run:
    """Messages of one transaction that are in one message of the source. ``is_last``: there are no more in that."""

    messages: MessageSection
    rejected: list[Rejection] = field(default_factory=list)
    begins: bool = False
    ends: bool = False
    is_last: bool = False


class _LeftChanges(NamedTuple):
    """The rest of a transaction in the message ``sequence``: its changes up to the ordinal ``passed`` are published."""

    sequence: int
    transaction: Transaction
    passed: int


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """``start`` are the places after which to continue, of changes and of copied rows, "" for the beginning.
    ``most_bytes`` is the limit of one message; ``cuts`` whether larger ones go in chunks."""

    form: LineEncoding
    pattern: SubjectPattern
    most_bytes: int
    cuts: bool
    start: str = ""
    copied_start: str = ""
    is_replay: bool = False

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Raises RejectedChanges for lines that are too large; then nothing of the partition is yielded after the
        first."""
        place = place_of(self.start) if self.start else None
        if self.is_replay:
            assert not isinstance(place, Position)
            left = (message for message in messages if place is None or message.sequence > place[0])
            return self._bodies(self.start, (run for message in left for run in self._runs(message, None)))
        assert place is None or isinstance(place, Position)
        return self._bodies(self.start, (run for message in messages for run in self._runs(message, place)))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """Like ``write``, for copied rows."""
        place = place_of(self.copied_start) if self.copied_start else None
        assert not isinstance(place, Position)
        return self._bodies(self.copied_start, self._copied_runs(copied, place))

    def _bodies(self, start: str, runs: Iterable[_Run]) -> Iterator[bytes]:
        rejections: list[Rejection] = []
        whole = WholeTransactions()

        def pieces() -> Iterator[tuple[list[bytes], bool]]:
            for run in runs:
                rejections.extend(run.rejected)
                blocks = whole.add(run.messages, begins=run.begins, ends=run.ends)
                yield ([] if rejections else list(blocks)), run.is_last
            yield ([] if rejections else list(whole.rest())), True

        for body in receipt_bodies(pieces(), encode_start(start)):
            if rejections:
                break
            yield body
        if rejections:
            raise RejectedChanges(rejections)

    def _runs(self, message: MessageChanges, start: Position | None) -> Iterator[_Run]:
        """Yields one for each transaction."""
        subjects = _Subjects(message, self.pattern, tells_definitions=self.form.tells_definitions).of_change
        lines = self._lines(message, subjects)
        are_plain = not self.is_replay and self._are_plain(lines)
        for transaction in message.transactions:
            passed, is_last = _passed(transaction, start), transaction is message.transactions[-1]
            begins = transaction.begins and not passed and not self.is_replay
            run = _Run(MessageSection(), begins=begins, ends=transaction.commits, is_last=is_last)
            if are_plain and not passed:
                changes = slice(transaction.first_change, transaction.end_change)
                run.messages.add_lines([names[0] for names in subjects[changes]], _change_ids(transaction), lines[changes])
            else:
                left = _LeftChanges(message.sequence, transaction, passed)
                run.rejected.extend(self._add_one_by_one(run.messages, left, subjects, lines))
            if transaction.commits and run.messages:
                run.messages.ends[-1] = Ends.TRANSACTION
            yield run

    def _lines(self, message: MessageChanges, subjects: list[tuple[bytes, ...]]) -> list[bytes]:
        """Returns the lines of each change, empty for a change that is in no part."""
        lines = self.form.encode(message)
        if len(lines) == len(subjects):
            return lines
        left = iter(lines)
        return [next(left) if names else b"" for names in subjects]

    def _are_plain(self, lines: list[bytes]) -> bool:
        """Returns whether each change makes one message."""
        return all(lines) and b"".join(lines).count(b"\n") == len(lines) and max(map(len, lines), default=0) <= self.most_bytes

    def _add_one_by_one(
        self, messages: MessageSection, left: _LeftChanges, subjects: list[tuple[bytes, ...]], lines: list[bytes]
    ) -> Iterator[Rejection]:
        """Adds the remaining changes of a transaction. Yields changes that cannot be published."""
        for index, change_id in enumerate(_change_ids(left.transaction), left.transaction.first_change):
            position, line = left.transaction.position(index), lines[index]
            if not line or position.ordinal <= left.passed:
                continue
            message_id = replay_id(left.sequence) if self.is_replay else change_id
            if not self._add_pieces(messages, subjects[index], message_id, line):
                yield Rejection(position, self._too_large(len(line)))

    def _add_pieces(self, section: MessageSection, subjects: Sequence[bytes], name: bytes, line: bytes) -> bool:
        """A change of one line or several, each in one message or several. False when it cannot be published."""
        pieces = line.splitlines()
        if len(pieces) == 1:
            subjects = subjects[:1]
        elif len(subjects) != len(pieces):  # a changed key is written as a deletion and an insertion
            subjects = [_renamed(subjects[0], "delete"), _renamed(subjects[0], "insert")] * (len(pieces) // 2)
        before = len(section.ends)
        for number, (subject, piece) in enumerate(zip(subjects, pieces, strict=True)):
            if not self._add_chunks(section, subject, b"%b/%d" % (name, number) if number else name, piece):
                return False
        section.ends[before:] = bytes([Ends.NOTHING] * (len(section.ends) - before - 1) + [Ends.CHANGE])
        return True

    def _add_chunks(self, section: MessageSection, subject: bytes, message_id: bytes, data: bytes) -> bool:
        if len(data) > self.most_bytes * (MOST_CHUNKS if self.cuts else 1):
            return False
        for chunk, piece in cut(data, self.most_bytes):
            if chunk == WHOLE:
                section.add(subject, message_id, piece, Ends.CHANGE)
            else:
                header = b"Pgsluice-Chunk:%b\r\n" % str(chunk).encode()
                section.add(subject, chunk_id(message_id, chunk.index), piece, Ends.NOTHING, header)
        return True

    def _copied_runs(self, copied: Iterable[CopiedRows], start: CopiedPlace | None) -> Iterator[_Run]:
        track = 0
        for rows in copied:
            *runs, last = self._runs_of_rows(rows, track, start)
            yield from runs
            yield replace(last, is_last=not rows.more_follow)
            track = track + 1 if rows.more_follow else 0

    def _runs_of_rows(self, rows: CopiedRows, track: int, start: CopiedPlace | None) -> Iterator[_Run]:
        """Rows are no transaction; some of them make one, so that many of these fit into a unit."""
        operation = "restart" if rows.restarts else "read"
        if rows.restarts and not self.form.tells_definitions:
            operation = "truncate"
        subject = self.pattern.subject(rows.table.schema, rows.table.name, operation)
        run, size = _Run(MessageSection(), begins=True, ends=True), 0
        for row, line in enumerate(self.form.encode_copied(rows)):
            place = rows.sequence, track, row
            if start is not None and place <= start:
                continue
            if len(run.messages) >= ROWS_TOGETHER or size >= ROWS_TOGETHER_BYTES:
                yield run
                run, size = _Run(MessageSection(), begins=True, ends=True), 0
            size += len(line)
            if not self._add_chunks(run.messages, subject, copied_id(place), line[:-1]):
                position = copied_position(rows.sequence, rows.row_number(row))
                run.rejected.append(Rejection(position, self._too_large(len(line))))
            else:
                run.messages.ends[-1] = Ends.TRANSACTION
        yield run

    def _too_large(self, size: int) -> str:
        if self.cuts:
            return f"its line of {size} bytes is more than {MOST_CHUNKS} messages of NATS hold"
        return f"its line of {size} bytes is larger than a message of NATS ({self.most_bytes}); see nats-large-messages"


def _change_ids(transaction: Transaction) -> Iterator[bytes]:
    """Yields the ids of its changes in a message."""
    first = transaction.first_ordinal
    position = b"%b:%%d" % format_lsn(transaction.commit_lsn).encode()
    return map(position.__mod__, range(first, first + transaction.end_change - transaction.first_change))


def _passed(transaction: Transaction, start: Position | None) -> int:
    """Returns the last ordinal of the transaction that is at or before ``start``; 0 when none is."""
    if start is None or transaction.commit_lsn > start.commit_lsn:
        return 0
    if transaction.commit_lsn < start.commit_lsn:
        return transaction.first_ordinal + transaction.end_change
    return start.ordinal


def _renamed(subject: bytes, operation: str) -> bytes:
    """Returns an update's subject with another operation; unchanged if the pattern does not name the operation."""
    tokens = [operation.encode() if token == b"update" else token for token in subject.split(b".")]
    return b".".join(tokens)
