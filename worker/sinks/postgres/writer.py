"""Writes one partition, in a Spark task: folds it, stages what is large, and puts the rest into the receipt.

A partition of small commits needs no connection at all; that is what makes a small batch fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import psycopg

from shared.changes import MessageChanges
from shared.settings import PostgresSettings
from shared.table import Table
from worker.sinks.postgres.connection import Connection, connect
from worker.sinks.postgres.failure import PieceError, target_error
from worker.sinks.postgres.fold import PartitionFold
from worker.sinks.postgres.piece import Piece, StagedRows
from worker.sinks.postgres.staging import StageNames, copy_into, create_stage, stage_identifier
from worker.sinks.postgres.target_table import TargetTable, prepare_target
from worker.sinks.sink import Partition

INLINE_BYTES = 256 * 1024
"""Up to so much COPY text travels in a receipt: Spark hands it to the driver in a millisecond or two, where a staging table costs
the target about five."""

SMALLEST_STAGED_BYTES = 16 * 1024
"""A piece below that is never worth a table of its own, however many there are."""


class TaskSession:
    """A task's connection and what it knows about target tables. One per Python worker process and target, for all tasks."""

    def __init__(self, target: PostgresSettings) -> None:
        self._target = target
        self._connection: Connection | None = None
        self._tables: dict[Table, TargetTable] = {}

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._target, "pgsluice task")
            # A staging table that a crash of the target takes with it is staged again; waiting for the disk buys nothing.
            self._connection.execute("SET synchronous_commit = off")
        return self._connection

    def target_table(self, table: Table, *, sync_schema: bool) -> TargetTable:
        if table not in self._tables:
            self._tables[table] = prepare_target(self.connection(), table, sync_schema=sync_schema)
        return self._tables[table]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._tables.clear()


_sessions: dict[PostgresSettings, TaskSession] = {}


@dataclass(frozen=True, slots=True)
class PostgresWriter:
    """``PartitionWriter`` of the Postgres sink. ``inline_bytes`` is how much COPY text a receipt may carry,
    small pieces aside. ``one_by_one`` is that of ``PartitionFold``."""

    target: PostgresSettings
    names: StageNames
    sync_schema: bool
    inline_bytes: int
    one_by_one: bool = False

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Yields one receipt, an encoded ``Share``. What it staged is committed by then."""
        fold = PartitionFold(one_by_one=self.one_by_one)
        for message in messages:
            fold.add(message)
        share = fold.share()
        large = self._large(share.pieces)
        if large:
            share = replace(share, pieces=self._stage(partition, share.pieces, large))
        yield share.encode()

    def _large(self, pieces: tuple[Piece, ...]) -> set[int]:
        """Indexes of the pieces to stage: the largest, until the rest fits into the receipt."""
        sizes = {i: len(piece.content) for i, piece in enumerate(pieces) if isinstance(piece.content, bytes)}
        together = sum(sizes.values())
        large: set[int] = set()
        for i in sorted(sizes, key=lambda i: sizes[i], reverse=True):
            if together <= self.inline_bytes or sizes[i] < min(SMALLEST_STAGED_BYTES, self.inline_bytes):
                break
            large.add(i)
            together -= sizes[i]
        return large

    def _stage(self, partition: Partition, pieces: tuple[Piece, ...], large: set[int]) -> tuple[Piece, ...]:
        """A session kept from an earlier task may be broken, or know tables as they were; then a new one tries again."""
        session = _sessions.setdefault(self.target, TaskSession(self.target))
        while True:
            kept = session.is_open
            try:
                return self._stage_all(session, partition, pieces, large)
            except PieceError as error:
                session.close()
                if not kept:
                    messages = f"messages {partition.first_sequence} to {partition.last_sequence}"
                    raise target_error(error.cause, error.table, f"staging {messages}") from None

    def _stage_all(
        self, session: TaskSession, partition: Partition, pieces: tuple[Piece, ...], large: set[int]
    ) -> tuple[Piece, ...]:
        """One transaction. Raises PieceError."""
        names = iter(self.names.of_attempt(partition.first_sequence))
        staged = list(pieces)
        table = pieces[min(large)].table
        try:
            for i in large:
                table = pieces[i].table
                session.target_table(table, sync_schema=self.sync_schema)
            with session.connection().transaction():
                for i in sorted(large):
                    table = pieces[i].table
                    staged[i] = self._stage_piece(session, pieces[i], next(names))
        except psycopg.Error as error:
            raise PieceError(table, error) from None
        return tuple(staged)

    def _stage_piece(self, session: TaskSession, piece: Piece, name: str) -> Piece:
        assert isinstance(piece.content, bytes)
        connection = session.connection()
        create_stage(connection, name, session.target_table(piece.table, sync_schema=self.sync_schema), piece.kind)
        copy_into(connection, stage_identifier(name), piece.content, new=True)
        return replace(piece, content=StagedRows(name))
