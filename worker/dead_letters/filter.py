"""Takes changes that the worker does not apply out of a partition, and makes dead letters of them. Runs in a Spark task.

A change is taken out when it is rejected itself, or when it touches a row with an earlier one. From then on all rows
that it touches are blocked. When a table's key is another than its dead letters', it is unknown whether a row has one:
then the filter takes out all of its changes. It does the same after it has rejected a truncation. While nothing is
excluded, a message passes at the cost of one check.

With ``DiscardingWriter`` tasks search a batch without writing it: rejected changes are taken out, the rest goes
nowhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, assert_never

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import CopiedRows, DefinitionChange, MessageChanges, Part, TableChanges, Transaction, Truncation
from pgsluice.shared.rows.copy_text import decode_rows, join_lines, split_lines
from pgsluice.shared.wire.dead_letter import DeadLetter, copied_position, now
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.exclusions import Exclusions, RowKey, TableKey, row_keys, table_key, whole_table
from pgsluice.worker.dead_letters.letter import ChangeFrames, copied_row_body
from pgsluice.worker.dead_letters.rejection import BEHIND, Rejection
from pgsluice.worker.sinks.sink import Partition

Truncated = tuple[int, Position]
"""The source's table, by its OID, and where it was truncated."""


class DeadLetterFilter:
    """The filter of one partition, whose messages come in commit order."""

    def __init__(self, exclusions: Exclusions, worker: str, truncates: Callable[[Table], bool] = lambda _: True) -> None:
        """``truncates``: whether a truncation of the table reaches the destination."""
        self._worker = worker
        self._truncates = truncates
        self._reasons = dict(exclusions.rejected)
        self._blocked = {table: dict(rows) for table, rows in exclusions.blocked.items()}
        self._room = exclusions.room
        self._letters: list[DeadLetter] = []
        self._truncated: list[Truncated] = []

    def take_letters(self) -> list[DeadLetter]:
        """Returns the dead letters since the call before."""
        letters, self._letters = self._letters, []
        return letters

    def take_truncated(self) -> list[Truncated]:
        """Returns tables with blocked rows that were truncated since the call before: their earlier dead letters are
        obsolete."""
        truncated, self._truncated = self._truncated, []
        return truncated

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """Makes ``remainder`` take these out too. For changes of the message that was passed last, which is passed
        again."""
        self._reasons |= {rejection.position: rejection.reason for rejection in rejections}

    def remainder(self, message: MessageChanges, body: bytes) -> MessageChanges:
        """Returns ``message``, which was decoded from ``body``, without excluded changes. Positions and transactions
        stay."""
        if not self._reasons and not self._blocked:
            return message
        search = _MessageSearch(message, body, self._reasons)
        parts: list[Part] = []
        for part in message.parts:
            match part:
                case TableChanges():
                    is_concerned = search.reasons or any(table.oid == part.table.oid for table in self._blocked)
                    parts += self._rows(part, table_key(part.table), search) if is_concerned else [part]
                case Truncation():
                    parts += self._truncation(part, search)
                case DefinitionChange():
                    parts.append(part)
                case unreachable:
                    assert_never(unreachable)
        return replace(message, parts=parts)

    def copied_remainder(self, copied: CopiedRows) -> CopiedRows:
        """Returns a whole message of copied rows without rejected ones; none is blocked, because copied rows come
        before every change."""
        first, end = copied_position(copied.sequence, 0), copied_position(copied.sequence, copied.rows)
        found = sorted(p.ordinal - first.ordinal for p in self._reasons if first <= p < end)
        if not found:
            return copied
        lines = split_lines(bytes(copied.data))
        columns = len(copied.table.columns)
        for row in found:
            position = copied_position(copied.sequence, row)
            values = tuple(column[0] for column in decode_rows(join_lines([lines[row]]), columns))
            self._add(position, copied.table.qualified_name, copied.sequence, copied.snapshot, copied_row_body(copied, values))
        left = sorted(set(range(len(lines))) - set(found))
        data = join_lines(lines[row] for row in left)
        return replace(copied, rows=len(left), data=memoryview(data), numbers=tuple(left))

    def _rows(self, part: TableChanges, table: TableKey, search: _MessageSearch) -> list[TableChanges]:
        blocked = self._blocked.get(table, {})
        otherwise = self._first_blocked_otherwise(table)
        keys = list(row_keys(part))
        is_free = otherwise is None and not any(before in blocked or after in blocked for before, after in keys)
        if not search.reasons and is_free:
            return [part]
        blocked = self._blocked.setdefault(table, {})
        left = []
        for row, (index, touched) in enumerate(zip(part.change_indexes, keys, strict=True)):
            position = search.position(index)
            reason = search.reasons.get(index) or _behind(blocked, touched, position)
            if not reason and otherwise is not None and otherwise[0] <= position:
                reason = f"{BEHIND} the dead letter {otherwise[0]}, {otherwise[1]}"
            if not reason:
                left.append(row)
                continue
            for key in touched:
                blocked[key] = min(position, blocked.get(key, position))
            self._reasons.setdefault(position, reason)
            self._add(position, part.table.qualified_name, search.sequence, "", search.letter_body(index))
        return [part.select(left)] if left else []

    def _first_blocked_otherwise(self, table: TableKey) -> tuple[Position, str] | None:
        """Returns the first dead letter of the table that may be about any of its rows, and why; None without any."""
        others = [(other, rows) for other, rows in self._blocked.items() if other.oid == table.oid and other != table]
        found = [(position, other) for other, rows in others for position in rows.values()]
        if not found:
            return None
        position, other = min(found)
        return position, "of when the table had another key" if other.columns else "a truncation of the table"

    def _truncation(self, truncation: Truncation, search: _MessageSearch) -> list[Truncation]:
        position = search.position(truncation.change_index)
        if truncation.change_index in search.reasons:
            tables = ", ".join(table.qualified_name for table in truncation.tables)
            for key, row in map(whole_table, truncation.tables):
                self._blocked.setdefault(key, {}).setdefault(row, position)
            self._add(position, tables, search.sequence, "", search.letter_body(truncation.change_index))
            return []
        for table in truncation.tables:
            keys = [key for key, rows in self._blocked.items() if key.oid == table.oid and rows]
            if keys and self._truncates(table):
                self._truncated.append((table.oid, position))
                self._blocked |= {key: {} for key in keys}
        return [truncation]

    def _add(self, position: Position, table: str, sequence: int, snapshot: str, body: bytes) -> None:
        if len(self._letters) > self._room:
            raise TerminalError(
                f"more than {self._room} more changes of worker '{self._worker}' would become dead letters",
                "see 'pgsluice dead list' for the reasons; replay or discard them, or raise --max-dead-letters",
            )
        reason = self._reasons[position]
        self._letters.append(DeadLetter(self._worker, position, table, reason, now(), sequence, snapshot, 1, body))


def _behind(blocked: dict[RowKey, Position], touched: tuple[RowKey, RowKey], position: Position) -> str:
    """Returns why a change waits for an earlier one of the same row; "" if it does not."""
    first = min((blocked[key] for key in touched if key in blocked), default=None)
    return f"{BEHIND} the dead letter {first} of the same row" if first is not None and first <= position else ""


class _MessageSearch:
    """One message, while changes are looked for in it. ``reasons`` are those of its rejected changes, by their index."""

    def __init__(self, message: MessageChanges, body: bytes, reasons: dict[Position, str]) -> None:
        self.sequence = message.sequence
        self._transactions = message.transactions
        self._ends = [transaction.end_change for transaction in message.transactions]
        self._body = body
        self._frames: ChangeFrames | None = None
        self.reasons = _indexed(message.transactions, reasons)

    def position(self, change_index: int) -> Position:
        return self._transactions[bisect_right(self._ends, change_index)].position(change_index)

    def letter_body(self, change_index: int) -> bytes:
        if self._frames is None:
            self._frames = ChangeFrames(self._body)
        return self._frames.letter_body(change_index)


def _indexed(transactions: list[Transaction], reasons: dict[Position, str]) -> dict[int, str]:
    """Returns the ``reasons`` whose position lies in the transactions, by change index."""
    by_lsn = {transaction.commit_lsn: transaction for transaction in transactions}
    found = {}
    for position, reason in reasons.items():
        transaction = by_lsn.get(position.commit_lsn)
        if transaction is not None:
            index = transaction.first_change + position.ordinal - transaction.first_ordinal
            if transaction.first_change <= index < transaction.end_change:
                found[index] = reason
    return found


@dataclass(frozen=True, slots=True)
class DiscardingWriter:
    """A ``PartitionWriter`` whose receipts are empty."""

    takes_deletes: ClassVar[bool] = True

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        for _ in messages:
            pass
        yield b""

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        for _ in copied:
            pass
        yield b""
