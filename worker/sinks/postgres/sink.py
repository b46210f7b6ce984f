"""The Postgres sink: each batch is one transaction at the target, with the worker's position in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import psycopg

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSinkSettings, WorkerSettings
from pgsluice.shared.errors import PgsluiceError, SinkBehindError, TerminalError, TransientError
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.postgres.fold.piece import CopiedShare, Share
from pgsluice.worker.sinks.postgres.merge.merge import Merge
from pgsluice.worker.sinks.postgres.merge.row_merge import RowMerge
from pgsluice.worker.sinks.postgres.merge.staging import (
    DROPPED_AT_ONCE,
    LOCKS_PER_STAGE,
    StageNames,
    check_staged,
    drop_stages,
    leftover_stages,
    lock_capacity,
)
from pgsluice.worker.sinks.postgres.own.applied import AppliedRow
from pgsluice.worker.sinks.postgres.own.copied_messages import CopiedMessages
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables
from pgsluice.worker.sinks.postgres.own.own_tables import ensure_tables
from pgsluice.worker.sinks.postgres.own.parked_text import check_parked
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.sessions import DriverSession
from pgsluice.worker.sinks.postgres.target.connection import Connection, connect
from pgsluice.worker.sinks.postgres.target.failure import (
    OccupiedError,
    PieceError,
    is_lock_table_full,
    is_transient,
    target_error,
)
from pgsluice.worker.sinks.postgres.target.sequences import advance_statement
from pgsluice.worker.sinks.postgres.target.table import empty_table
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES, MOST_STAGES, PostgresWriter
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Delivery, MissedChanges, Receipt

APART_BATCHES = 10
LEAN_BATCHES = 10

LAST_CHANGE_ATTEMPTS = 5
"""So often the last change of a refused row is taken out; a row with many changes in a batch must not make as many passes."""

LOCK_TABLE_ATTEMPTS = 6
"""So often a batch is tried at a target whose table of locks is full. Other sessions' locks may fill it, but not for long."""

TASK_LOCK_ATTEMPTS = 20
"""The same for what tasks do, where other failures count too, such as a target that is away."""

_log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What is left to apply of a batch, and where that leads."""

    shares: Sequence[Share]
    first_sequence: int
    position: Applied
    changes: int

    @property
    def stages(self) -> list[str]:
        return [name for share in self.shares for name in share.stages()]

    @property
    def parked_tables(self) -> set[str]:
        return {table for share in self.shares for table in share.parked_tables()}

    @property
    def tables(self) -> list[Table]:
        """Each once."""
        pieces = [piece.table for share in self.shares for piece in share.pieces]
        clearings = [clearing.table for share in self.shares for clearing in share.clearings]
        return list(dict.fromkeys(clearings + pieces))

    def __str__(self) -> str:
        return f"messages {self.first_sequence} to {self.position.sequence}"


class PostgresSink:
    """``Sink`` for one target database: exactly once, by the row in ``pgsluice.applied``.

    ``inline_bytes`` is how much COPY text a receipt may carry before its pieces are staged by the task, ``most_stages`` how many
    staging tables a batch may have before pieces are parked.
    """

    delivery = Delivery.COLLECTED

    def __init__(
        self,
        settings: WorkerSettings,
        sink_settings: PostgresSinkSettings,
        inline_bytes: int = INLINE_BYTES,
        most_stages: int = MOST_STAGES,
    ) -> None:
        self._settings = sink_settings
        self._names = StageNames(settings.group, settings.name)
        self._row = AppliedRow(settings.group, settings.name)
        self._copied = CopiedMessages(settings.group, settings.name)
        self._known_tables = KnownTables.of(settings.group, settings.name)
        self._missed: Sequence[MissedChanges] = ()
        self._writer = PostgresWriter(sink_settings, self._names, inline_bytes)
        self._session: DriverSession | None = None
        self._applied = NOTHING_APPLIED
        self._in_doubt: Applied | None = None
        """Where the last transaction led, while its end is not known: the connection broke."""
        self._one_by_one = False
        """Whether the next batch is written change by change, because a constraint refused it in folded form."""
        self._apart_batches = 0
        """How many more batches are written with labelled rows, because the target refused some: others may follow."""
        self._attempts = 0
        """How often the batch in hand was written."""
        self._most_stages = most_stages
        """Less when the target's table of locks has no room for them."""
        self._lock_failures = 0
        """How often it failed because the target's table of locks was full."""
        self._lean_batches = 0
        """How many more batches are written without staging tables, because of that."""
        self._litter = False
        """Whether staging tables of this worker may be left."""

    def open(self) -> Applied:
        """Creates our own tables when they are missing, waits for a transaction of a predecessor that is still moving the
        position, and drops staging tables that nobody will merge."""
        self.close()
        connection = connect(self._settings, "pgsluice worker")
        try:
            ensure_tables(connection)
            if self._row.ensure(connection) and self._known_tables.worker == self._names.worker:
                self._known_tables.forget(connection)
            self._most_stages = min(self._most_stages, lock_capacity(connection) // LOCKS_PER_STAGE)
            self._session = self._new_session(connection)
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = 0")  # a large batch of the predecessor takes its time
                self._applied = self._row.lock(connection) or NOTHING_APPLIED
            self._missed = self._known_tables.missed(connection)
            drop_stages(connection, leftover_stages(connection, self._names, None))
        except PgsluiceError:
            connection.close()
            raise
        except psycopg.Error as error:
            connection.close()
            raise self._failure(error, None, "preparing schema pgsluice") from None
        self._in_doubt = None
        return self._applied

    def renumber(self, applied: Applied) -> None:
        """Moves the position to where the stream holds what is applied now."""
        try:
            connection = self._connected().connection
            with connection.transaction():
                self._check_position(connection)
                self._row.move(connection, applied)
        except psycopg.Error as error:
            raise target_error(error, None, "moving the position") from None
        self._applied = applied

    def writer(self) -> PostgresWriter:
        self._attempts += 1
        apart, blame_first = self._apart_batches > 0, self._attempts > LAST_CHANGE_ATTEMPTS
        return replace(
            self._writer,
            one_by_one=self._one_by_one,
            apart=apart,
            blame_first=blame_first,
            stages=0 if self._lean_batches else self._most_stages,
            is_last=self._attempts >= TASK_LOCK_ATTEMPTS,
        )

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """One transaction; receipts that are applied already are passed over. After TransientError and RejectedChanges the
        partitions have to be written anew: what was staged may be gone, or looked at in another way."""
        received = list(receipts)
        try:
            session = self._connected()
            rest = self._rest_of(received, stream_created)
            if not rest:
                return self._applied
            position = self._applied
            for receipt in rest:
                position = position.after(receipt, stream_created)
            if rest[0].copied:
                self._finish_copied(session, rest, position)
            else:
                self._finish_changes(session, rest, position)
        except (psycopg.Error, PieceError) as error:
            cause, table = (error.cause, error.table) if isinstance(error, PieceError) else (error, None)
            if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
                self.close()  # what was a primary is none any more: connecting anew finds the one that is
            doing = f"applying messages {received[0].first_sequence} to {received[-1].last_sequence}"
            raise self._failure(cause, table, doing) from None
        self._applied, self._in_doubt, self._attempts, self._lock_failures = position, None, 0, 0
        self._clean_up(session)
        return self._applied

    def missed(self) -> Sequence[MissedChanges]:
        """As ``CountingSink.missed`` says."""
        return self._missed

    def finish_copy(self) -> None:
        """Builds the keys of the tables that were made for the copy; that may take a while."""
        try:
            self._connected().build_keys()
        except psycopg.Error as error:
            raise target_error(error, None, "building keys") from None

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
        self._session = None

    def _connected(self) -> DriverSession:
        """The session, a new one after a broken connection; by then it is clear what became of the last transaction."""
        if self._session is None or self._session.connection.closed:
            self._session = self._new_session(connect(self._settings, "pgsluice worker"))
        if self._in_doubt is not None:
            with self._session.connection.transaction():
                if self._row.lock(self._session.connection) == self._in_doubt:
                    self._applied = self._in_doubt
            self._missed = self._known_tables.missed(self._session.connection)
            self._in_doubt = None
        return self._session

    def _new_session(self, connection: Connection) -> DriverSession:
        pending_keys = PendingKeys(self._names.group, self._names.worker)
        return DriverSession(connection, self._settings, pending_keys, self._known_tables)

    def _check_position(self, connection: Connection) -> None:
        """Locks the position, which must be where this sink left it."""
        found = self._row.lock(connection)
        if found == self._applied:
            return
        position = f"the position of worker '{self._names.worker}' of group '{self._names.group}' in pgsluice.applied"
        if found is None:
            raise TerminalError(f"{position} is gone", "restore the row, or the target as a whole, and start again")
        if found.is_behind(self._applied):
            raise SinkBehindError(
                f"{position} is behind what this worker applied: the target is in a state that it had before",
                "after a failover or a restore, start again: the worker goes on from there",
            )
        raise TerminalError(
            f"{position} was moved by somebody else",
            "another worker of this name writes to this target; stop it, or give one of them another name",
        )

    def _rest_of(self, receipts: Sequence[Receipt], stream_created: str) -> list[Receipt]:
        """Those that are not applied."""
        copied = receipts[0].copied
        same_stream = copied or stream_created == self._applied.stream_created
        applied = self._applied.last_sequence(copied=copied) if same_stream else 0
        rest = [receipt for receipt in receipts if receipt.last_sequence > applied]
        if rest and rest[0].first_sequence <= applied:
            raise TerminalError(
                f"a batch begins with message {rest[0].first_sequence}, inside of what is applied up to {applied}",
                "start the worker again: it continues from the position",
            )
        return rest

    def _finish_copied(self, session: DriverSession, receipts: Sequence[Receipt], position: Applied) -> None:
        """Moves the position over rows that are in their tables already, and empties tables that are copied anew."""
        shares = [CopiedShare.decode(receipt.body) for receipt in receipts]
        restarted = [session.target_table(table) for share in shares for table in share.restarted]
        filled = [session.target_table(table) for table in {table: None for share in shares for table in share.filled}]
        session.tell_missing_sequences()
        connection = session.connection
        with connection.transaction():
            self._check_position(connection)
            self._copied.check(connection, [sequence for share in shares for sequence in share.sequences])
            for target in restarted:
                empty_table(connection, target)
            self._known_tables.clear_missed(connection, [target.table for target in restarted])
            for target in filled:
                for sequence in target.sequences:
                    column = target.columns[sequence.column].name
                    connection.execute(advance_statement(sequence, target.identifier, column))
            self._copied.forget(connection, position.snapshot_sequence)
            self._row.move(connection, position, copied_rows=sum(receipt.changes for receipt in receipts))
            self._in_doubt = position
        if restarted:
            self._missed = self._known_tables.missed(connection)
        session.expect_keys()

    def _finish_changes(self, session: DriverSession, receipts: Sequence[Receipt], position: Applied) -> None:
        session.build_keys()
        shares = [Share.decode(receipt.body) for receipt in receipts]
        if any(share.is_refused for share in shares):
            self._litter, self._apart_batches = True, APART_BATCHES
            raise RejectedChanges(())
        changes = sum(receipt.changes for receipt in receipts)
        batch = _Batch(shares, receipts[0].first_sequence, position, changes)
        self._litter = self._litter or bool(batch.stages) or bool(batch.parked_tables)
        self._apply(session, batch)
        self._one_by_one = False
        self._apart_batches = max(0, self._apart_batches - 1)
        self._lean_batches = max(0, self._lean_batches - 1)

    def _apply(self, session: DriverSession, batch: _Batch) -> None:
        """A target table may have been altered since it was looked at; then the second look says what is wrong, or nothing is."""
        known = session.knows_any(batch.tables)
        try:
            self._transact(session, batch)
        except OccupiedError:
            session.occupied.update(batch.tables)  # where one table has rows that are said to be new, others may too
            self._apply(session, batch)
        except PieceError as error:
            if not known or is_transient(error.cause):
                raise self._refusal(error, batch) from None
            session.forget()
            self._apply(session, batch)

    def _refusal(self, error: PieceError, batch: _Batch) -> PgsluiceError | RejectedChanges:
        """Folding skips states that the source went through; a unique constraint or a foreign key may have needed them."""
        skipped = isinstance(error.cause, psycopg.errors.UniqueViolation | psycopg.errors.ForeignKeyViolation)
        if skipped and not self._one_by_one:
            self._one_by_one = True
            return TransientError(
                f"a constraint of table '{error.table.qualified_name}' refuses the outcome of {batch}",
                "they are applied one by one",
            )
        if error.concerns_rows and not self._apart_batches:
            self._apart_batches = APART_BATCHES
            return RejectedChanges(())
        return self._failure(error.cause, error.table, f"applying {batch}")

    def _failure(self, error: psycopg.Error, table: Table | None, doing: str) -> PgsluiceError:
        """What ``target_error`` says. For want of locks the next attempts do without staging tables."""
        if is_lock_table_full(error):
            self._lock_failures += 1
            self._lean_batches = LEAN_BATCHES
        return target_error(error, table, doing, is_last=self._lock_failures >= LOCK_TABLE_ATTEMPTS)

    def _transact(self, session: DriverSession, batch: _Batch) -> None:
        session.tell_apart(apart=self._apart_batches > 0)
        session.prepare(batch.tables, batch.shares)
        connection = session.connection
        with connection.transaction():
            self._check_position(connection)
            check_staged(connection, batch.stages)
            check_parked(connection, batch.parked_tables)
            row_merge = RowMerge(connection, session.targets, session.stages) if self._apart_batches else None
            merge = Merge(session, row_merge)
            merge.apply(batch.shares)
            if row_merge is not None and row_merge.rejections:
                self._apart_batches = APART_BATCHES
                raise RejectedChanges(row_merge.rejections)
            if len(batch.stages) <= DROPPED_AT_ONCE:
                drop_stages(connection, batch.stages)
            self._known_tables.count_missed(connection, merge.missing)
            self._row.move(connection, batch.position, changes=batch.changes)
            self._in_doubt = batch.position
        if merge.missing:
            self._missed = self._known_tables.missed(connection)

    def _clean_up(self, session: DriverSession) -> None:
        """Drops what the merge did not, and what attempts left behind whose work was done by others. The batch is applied
        whatever happens here."""
        if not self._litter:
            return
        try:
            drop_stages(session.connection, leftover_stages(session.connection, self._names, self._applied.sequence))
            self._litter = False
        except psycopg.Error as error:
            _log.warning("staging tables could not be dropped yet", sqlstate=error.sqlstate)
