"""Decoded changes, columnar: what rules transform and sinks write.

One stream message decodes to ``MessageChanges``: its transactions, and its changes as parts in order. A part is a
``TableChanges`` (all rows of one table version between two barriers, as columns), a ``Truncation`` (a barrier for the
tables it names) or a ``DefinitionChange`` (a barrier for everything, alone in its message). Within one message the rows of
different tables are apart; ``change_indexes`` gives back the order. Routing can send one change to several tables: then it
is in a part of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.run_mark import NO_RUN, RunMark
from pgsluice.shared.wire.table import Table, Value

INSERT = ord("I")
UPDATE = ord("U")
DELETE = ord("D")


@dataclass(slots=True)
class TableChanges:
    """Rows of one table, one list per column (``new`` may be ``PlainRows``, which makes them when asked).

    ``operations[r]`` is INSERT, UPDATE or DELETE. ``change_indexes[r]`` counts the changes of the message from 0 in
    commit order. ``new[c][r]`` is the new row's value (None throughout for a DELETE, to be ignored). ``old`` is None
    when no row has an old image; else ``old[c][r]`` is the old row's value and ``old_kinds[r]`` is its kind: NO_OLD_ROW
    (ignore it), OLD_KEY (only columns with ``identity_key`` mean something, the others are unset) or OLD_ROW (every
    column was sent).
    """

    table: Table
    operations: bytearray = field(default_factory=bytearray)
    change_indexes: list[int] = field(default_factory=list)
    new: Sequence[Sequence[Value]] = field(default_factory=list)
    old: Sequence[Sequence[Value]] | None = None
    old_kinds: bytearray | None = None

    def __len__(self) -> int:
        return len(self.operations)

    def select(self, rows: Sequence[int]) -> TableChanges:
        """Returns the table with only these rows, in the order given."""

        def chosen(columns: Sequence[Sequence[Value]]) -> list[list[Value]]:
            return [[column[row] for row in rows] for column in columns]

        return TableChanges(
            self.table,
            bytearray(self.operations[row] for row in rows),
            [self.change_indexes[row] for row in rows],
            chosen(self.new),
            None if self.old is None else chosen(self.old),
            None if self.old_kinds is None else bytearray(self.old_kinds[row] for row in rows),
        )


@dataclass(frozen=True, slots=True)
class Truncation:
    """One TRUNCATE of one or more tables."""

    tables: tuple[Table, ...]
    change_index: int
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """The alteration or end of a table or type from here on. ``is_copied``: a copy of the table includes it already, so
    a sink only forwards it and alters nothing."""

    definition: PublishedDefinition
    change_index: int
    is_copied: bool = False


Part = TableChanges | Truncation | DefinitionChange
"""A part of a message. Code that reads parts uses ``match``, so that the type checker finds all of them when there is a
fourth kind."""


class Transaction(NamedTuple):
    """The part of one source transaction that lies in a message.

    Its changes are those with ``first_change <= change_index < end_change``; the first of them has the ordinal
    ``first_ordinal``. ``begins`` and ``commits``: whether the transaction's first change and its Commit are in this
    message. ``committed_at`` is microseconds since 2000-01-01 UTC, as the server sent it.
    """

    commit_lsn: int
    xid: int
    committed_at: int
    first_change: int
    end_change: int
    first_ordinal: int
    begins: bool
    commits: bool

    def position(self, change_index: int) -> Position:
        return Position(self.commit_lsn, self.first_ordinal + change_index - self.first_change)  # type: ignore[arg-type]


@dataclass(slots=True)
class MessageChanges:
    """One decoded stream message. ``sequence`` is its last chunk's, ``first_sequence`` its first chunk's."""

    first_sequence: int
    sequence: int
    transactions: list[Transaction]
    parts: list[Part]
    change_count: int


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows that a snapshot copied from one table, as COPY text (``copy_text`` decodes it) in the order of
    ``table.columns``.

    ``restarts``: the table is copied again; what was copied of it before does not count. Such a message has no rows and
    is alone in its batch. ``more_follow``: what comes next is of the same message, on its way to another table. The
    sequence counts as written when all of them are, so no receipt may come in between. ``numbers`` are the rows'
    numbers in their message, from 0; None when all rows of the message are here. ``begins_run``: rows that a pipeline's
    query gave follow, of keys that may have come before; that message, too, has no rows and is alone in its batch.
    ``mark`` identifies the run, and the meaning of its rows; NO_RUN for rows of a copy. A message that begins a run
    which replaces all rows ``restarts``; another one ends it, without rows and alone in its batch. ``deletes``: these
    rows must be deleted; they hold only their keys.
    """

    sequence: int
    table: Table
    snapshot: str
    rows: int
    data: memoryview = field(repr=False)
    restarts: bool
    more_follow: bool = False
    numbers: tuple[int, ...] | None = None
    begins_run: bool = False
    mark: RunMark = NO_RUN
    deletes: bool = False

    def row_number(self, row: int) -> int:
        """Returns the message's row number of the row at ``row``."""
        return row if self.numbers is None else self.numbers[row]
