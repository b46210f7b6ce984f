"""Writes one partition, in a Spark task.

Changes are folded; what is large is staged or parked, the rest goes into the receipt: a partition of small commits needs no
connection at all, which makes a small batch fast. Copied rows are loaded right into their tables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import psycopg

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.definitions.policy import DEFAULT_POLICIES, Policies
from pgsluice.worker.sinks.postgres.copy_load import find_refused, load
from pgsluice.worker.sinks.postgres.fold.blamed_positions import BlamedPositions
from pgsluice.worker.sinks.postgres.fold.fold import PartitionFold
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition, LoadedPartition, Piece, StagedRows
from pgsluice.worker.sinks.postgres.merge.refused_rows import RefusalBound, check_table, copy_accepted
from pgsluice.worker.sinks.postgres.merge.staging import (
    StageNames,
    copy_into,
    create_stage,
    index_rows,
    is_wide,
    keep_uncompressed,
)
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.own.applied import CopiedMessages
from pgsluice.worker.sinks.postgres.own.handed_text import hand_over
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.own.parked_text import ensure_parked_table, park
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.sessions import PostgresTaskSession, in_task_session
from pgsluice.worker.sinks.postgres.target.failure import PieceError, copy_error, is_lock_table_full, target_error
from pgsluice.worker.sinks.sink import Partition

REFUSED = FoldedPartition((), (), is_refused=True)

INLINE_BYTES = 256 * 1024
"""The most COPY text that travels in a receipt: Spark hands it to the driver in a millisecond or two, where a staging
table costs the target about five."""

HANDED_FROM_BYTES = 16 * 1024
"""More COPY text than that is handed over in a file, where tasks run on the driver's machine."""

MOST_HANDED_PARTITIONS = 8
"""Larger batches, which are single transactions, are staged: in files their text would take the machine's memory."""

MOST_STAGES = 1000
"""The most staging tables of a batch at a target with locks for them, all partitions together, and at least one per
partition; what is beyond is parked."""

STAGES_PER_TRANSACTION = 16
"""Making a stage takes four locks, until the transaction ends."""

TABLES_PER_TRANSACTION = 64
"""Limit of tables that copied rows are loaded into in one transaction: each is locked with its indexes."""

SMALLEST_STAGED_BYTES = 128 * 1024
"""A smaller piece is not worth a separate table, while there is room for it in the receipts."""

WIDE_ROW_BYTES = 2000
"""PostgreSQL compresses values of larger rows."""

RECEIPTS_BYTES = 32 * 1024 * 1024
"""The most COPY text of a batch that may reach the driver, whatever its pieces are like."""

TRANSACTION_BYTES = 8 * 1024 * 1024
"""The most copied text that is loaded at once, and that a task holds: enough to make a commit's cost disappear."""

log = telemetry.logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PostgresWriter:
    """``PartitionWriter`` of the Postgres sink.

    ``inline_bytes`` is how much COPY text a receipt may always carry. With ``one_by_one`` nothing is folded. With
    ``labelled``, rows carry a number and a position, so that refused rows can be named; the position is the row's last
    change in the partition, with ``blame_first`` its first one. ``stages`` is how many staging tables the batch may
    have (0: none at all). ``handover`` is a directory where files reach the driver, "" without one. When more than
    ``most_refused`` rows are refused, it does not search for the others. ``is_last``: when the target has no room for
    another lock, it was tried often enough.
    """

    settings: PostgresSinkSettings
    names: StageNames
    inline_bytes: int
    policies: Policies = DEFAULT_POLICIES
    one_by_one: bool = False
    labelled: bool = False
    blame_first: bool = False
    stages: int = MOST_STAGES
    handover: str = ""
    most_refused: int = sys.maxsize
    is_last: bool = False
    takes_deletes: ClassVar[bool] = True

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Yields one receipt, an encoded ``FoldedPartition``. What it staged is committed by then. Raises RejectedChanges only
        when rows are ``labelled``."""
        folded = self._fold(messages)
        if self.handover:
            folded = self._handed_over(partition, folded)
        large = self._large(folded.pieces, RECEIPTS_BYTES // partition.partitions)
        if large:
            try:
                folded = replace(folded, pieces=self._stage(partition, folded.pieces, large))
            except PieceError as error:
                if self.labelled or not error.concerns_rows:
                    doing = f"staging {_messages(partition)}"
                    raise target_error(error.cause, error.table, doing, is_last=self.is_last) from None
                folded = REFUSED
        yield folded.encode()

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """Yields one receipt, an encoded ``LoadedPartition``. Its rows are loaded by then, and stay loaded also if the
        batch fails."""
        sequences: dict[int, None] = {}  # each once: a message can contain rows for several tables
        about = _Borders()
        filled: dict[Table, None] = {}
        rejections: list[Rejection] = []
        for group in _groups(copied):
            rejections += self._load(partition, group)
            sequences |= {rows.sequence: None for rows in group if rows.data}
            about.note(group)
            filled |= {rows.table: None for rows in group if self.settings.sync_sequences and (rows.data or rows.mark.ends)}
        if rejections:
            raise RejectedChanges(rejections)
        yield replace(about.loaded(), sequences=tuple(sequences), filled=tuple(filled)).encode()

    def _fold(self, messages: Iterable[MessageChanges]) -> FoldedPartition:
        fold = PartitionFold(one_by_one=self.one_by_one)
        if not self.labelled:
            for message in messages:
                fold.add(message)
            return fold.finish()
        positions = BlamedPositions(first=self.blame_first)
        for message in messages:
            fold.add(message)
            positions.add(message)
        return positions.label(fold.finish())

    def _load(self, partition: Partition, group: Sequence[CopiedRows]) -> list[Rejection]:
        """Loads a group; returns the target's refusals. Nothing of the group is loaded then."""
        messages = CopiedMessages(self.names.group, self.names.worker)
        try:
            try:
                self._in_session(lambda session: load(session, messages, group))
            except PieceError as error:
                if not error.concerns_rows or isinstance(error.cause, psycopg.errors.ForeignKeyViolation):
                    raise
                refused = self._in_session(lambda session: find_refused(session, messages, group, self.most_refused))
                if not refused:
                    fact = "the target takes rows now that it refused"
                    raise TransientError(fact, "the batch is loaded again", Cause.TARGET) from None
                return refused
        except PieceError as error:
            raise copy_error(error, f"loading {_messages(partition)}", is_last=self.is_last) from None
        return []

    def _handed_over(self, partition: Partition, folded: FoldedPartition) -> FoldedPartition:
        """Returns ``folded`` with its text in a file, if there is enough, and room."""
        texts = [piece.content for piece in folded.pieces if isinstance(piece.content, bytes)]
        is_large_batch = partition.partitions > MOST_HANDED_PARTITIONS
        if is_large_batch or self.labelled or sum(map(len, texts)) < min(HANDED_FROM_BYTES, self.inline_bytes):
            return folded
        try:
            handed = iter(hand_over(self.handover, partition.first_sequence, texts))
        except OSError as error:
            log.warning("rows cannot be handed to the driver in a file, staging them", reason=os.strerror(error.errno or 0))
            return folded
        pieces = [replace(each, content=next(handed)) if isinstance(each.content, bytes) else each for each in folded.pieces]
        return replace(folded, pieces=tuple(pieces))

    def _large(self, pieces: tuple[Piece, ...], room: int) -> set[int]:
        """Returns indexes of the pieces to stage: the largest, until the rest is little enough for a receipt, or small
        and within ``room``."""
        sizes = {i: len(piece.content) for i, piece in enumerate(pieces) if isinstance(piece.content, bytes)}
        together = sum(sizes.values())
        large: set[int] = set()
        for i in sorted(sizes, key=lambda i: sizes[i], reverse=True):
            is_small = sizes[i] < min(SMALLEST_STAGED_BYTES, self.inline_bytes)
            if together <= self.inline_bytes or (is_small and together <= room):
                break
            large.add(i)
            together -= sizes[i]
        return large

    def _stage(self, partition: Partition, pieces: tuple[Piece, ...], large: set[int]) -> tuple[Piece, ...]:
        try:
            return self._in_session(lambda session: self._stage_all(session, partition, pieces, large))
        except PieceError as error:
            if not self.stages or not is_lock_table_full(error.cause):
                raise
            return replace(self, stages=0)._stage(partition, pieces, large)

    def _in_session(self, work: Callable[[PostgresTaskSession], T]) -> T:
        owner = self.names.group, self.names.worker
        return in_task_session((self.settings, PendingKeys(*owner), KnownTables.of(*owner), self.policies), work)

    def _stage_all(
        self, session: PostgresTaskSession, partition: Partition, pieces: tuple[Piece, ...], large: set[int]
    ) -> tuple[Piece, ...]:
        """Raises PieceError, or RejectedChanges with all rows that could not be staged."""
        rejections: list[Rejection] = []
        if self.labelled:
            session.forget()  # a row must not be refused for what its table was like earlier
        names = iter(self.names.of_attempt(partition.first_sequence))
        staged = list(pieces)
        table = pieces[min(large)].table
        own, parked = self._apportion(partition, pieces, large)
        try:
            for i in own:
                table = pieces[i].table
                session.target_table(table)
            for few in _slices(own, STAGES_PER_TRANSACTION):
                with session.connection().transaction():
                    for i in few:
                        table = pieces[i].table
                        staged[i] = self._stage_piece(session, pieces[i], next(names), rejections)
            if parked:
                parking = self.names.parked_table(partition.first_sequence)
                ensure_parked_table(session.connection(), parking)
                with session.connection().transaction():
                    for i in parked:
                        staged[i] = self._park_piece(session, parking, pieces[i], next(names))
        except psycopg.Error as error:
            raise PieceError(table, error) from None
        if rejections:
            raise RejectedChanges(rejections)
        return tuple(staged)

    def _apportion(self, partition: Partition, pieces: tuple[Piece, ...], large: set[int]) -> tuple[list[int], list[int]]:
        """Returns which of the ``large`` pieces have separate stages, the largest first, and which are parked. The
        driver has stages for rows that no table has room for."""
        stages = 0 if partition.defines else self.stages  # which have the types of the target's columns
        room = max(1, stages // partition.partitions) if stages else 0
        wide = {i for i in large if is_wide(pieces[i].table, pieces[i].kind)} if not self.labelled else set()
        by_size = sorted(large - wide, key=lambda i: pieces[i].text_bytes, reverse=True)
        return sorted(by_size[:room]), sorted([*by_size[room:], *wide])

    def _park_piece(self, session: PostgresTaskSession, table: str, piece: Piece, name: str) -> Piece:
        assert isinstance(piece.content, bytes)
        return replace(piece, content=park(session.connection(), table, name, piece.content))

    def _stage_piece(self, session: PostgresTaskSession, piece: Piece, name: str, rejections: list[Rejection]) -> Piece:
        assert isinstance(piece.content, bytes)
        connection, target = session.connection(), session.target_table(piece.table)
        create_stage(connection, name, target, piece.kind, labelled=self.labelled)
        if len(piece.content) > piece.rows * WIDE_ROW_BYTES:
            keep_uncompressed(connection, name)
        if self.labelled:
            bound = RefusalBound(self.most_refused)
            refused, refusals = copy_accepted(connection, own_table(name), target, piece.content, bound)
            check_table(piece.table, refusals)
            rejections += refused
            index_rows(connection, name)
        else:
            copy_into(connection, own_table(name), [piece.content], new=True)
        return replace(piece, content=StagedRows(name))


class _Borders:
    """Tables that are copied again, and where runs of a pipeline begin and end."""

    def __init__(self) -> None:
        self._restarted: list[Table] = []
        self._begun: list[Table] = []
        self._replacing: list[Table] = []
        self._replaced: list[Table] = []
        self._run = 0

    def note(self, group: Iterable[CopiedRows]) -> None:
        for rows in group:
            self._run = max(self._run, rows.mark.run)
            if rows.begins_run:
                self._begun.append(rows.table)
                self._replacing += [rows.table] if rows.mark.replaces else []
            elif rows.mark.ends:
                self._replaced.append(rows.table)
            elif rows.restarts:
                self._restarted.append(rows.table)

    def loaded(self) -> LoadedPartition:
        restarted, begun, replacing, replaced = map(tuple, (self._restarted, self._begun, self._replacing, self._replaced))
        return LoadedPartition((), restarted, (), begun, replacing, replaced, self._run)


def _groups(copied: Iterable[CopiedRows]) -> Iterator[list[CopiedRows]]:
    """Yields whole messages, to load in one transaction each."""
    group: list[CopiedRows] = []
    tables: set[Table] = set()
    size = 0
    for rows in copied:
        group.append(rows)
        tables.add(rows.table)
        size += len(rows.data)
        if (size >= TRANSACTION_BYTES or len(tables) >= TABLES_PER_TRANSACTION) and not rows.more_follow:
            yield group
            group, size = [], 0
            tables.clear()
    if group:
        yield group


def _slices(indexes: list[int], size: int) -> Iterator[list[int]]:
    return (indexes[first : first + size] for first in range(0, len(indexes), size))


def _messages(partition: Partition) -> str:
    return f"messages {partition.first_sequence} to {partition.last_sequence}"
