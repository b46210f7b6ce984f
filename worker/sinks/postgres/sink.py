"""The Postgres sink: each batch is one transaction at the target, with the worker's position in it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import psycopg

from pgsluice.shared import telemetry
from pgsluice.shared.broker.worker_records import UnchangedRows
from pgsluice.shared.config.declaration import files_of
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import Cause, PgsluiceError
from pgsluice.shared.postgres.session_settings import warn_of_unverified
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.spark.spark_settings import DEFAULT_MASTER, is_local
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.sinks.abilities import MayLeaveOut
from pgsluice.worker.sinks.postgres.attempts import Attempts
from pgsluice.worker.sinks.postgres.batch import Batch, tables_of
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition, LoadedPartition
from pgsluice.worker.sinks.postgres.merge.merge import Merge
from pgsluice.worker.sinks.postgres.merge.missing_rows import MissingRowPolicy
from pgsluice.worker.sinks.postgres.merge.refused_rows import RefusalBound, RowMerge
from pgsluice.worker.sinks.postgres.merge.replacement import Replacements
from pgsluice.worker.sinks.postgres.merge.staging import (
    DROPPED_AT_ONCE,
    LOCKS_PER_STAGE,
    StageNames,
    check_staged,
    drop_stages,
    leftover_stages,
    lock_capacity,
)
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.own.applied import AppliedRow, CopiedMessages, not_applied
from pgsluice.worker.sinks.postgres.own.handed_text import HandoverDirectory
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables, Missing
from pgsluice.worker.sinks.postgres.own.own_tables import ensure_tables
from pgsluice.worker.sinks.postgres.own.parked_text import check_parked
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.preflight.held_rows import held_already
from pgsluice.worker.sinks.postgres.preflight.target_role import check_role
from pgsluice.worker.sinks.postgres.sessions import DriverSession
from pgsluice.worker.sinks.postgres.target.connection import Connection, grant_of_replica_role
from pgsluice.worker.sinks.postgres.target.failure import DirectCopyError, PieceError, is_transient, target_error
from pgsluice.worker.sinks.postgres.target.sequences import advance_statement
from pgsluice.worker.sinks.postgres.target.statement_watch import StatementWatch
from pgsluice.worker.sinks.postgres.target.table import empty_table
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES, MOST_STAGES, PostgresWriter
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, DefinitionUse, Delivery, Lane, MissedChanges, Receipt

_log = telemetry.logger(__name__)


def _merge_between_definitions(
    session: DriverSession,
    merge: Merge,
    partitions: Sequence[FoldedPartition],
    accepted: Collection[PublishedDefinition],
) -> None:
    """Merges partitions. Tables are read again after each definition, in the transaction that altered them: all objects
    created in it go with it."""
    for defines, group in itertools.groupby(partitions, key=lambda folded: bool(folded.definitions)):
        between = list(group)
        if defines:
            session.alter((definition for folded in between for definition in folded.definitions), accepted)
        else:
            session.prepare(tables_of(between), between)
            merge.apply(between)


def _keep_replacements(session: DriverSession, replacements: Replacements, partitions: Sequence[LoadedPartition]) -> list[int]:
    """Begins and finishes replacements, in the transaction that moves the position; tables were read before. Returns
    the results of ``finish`` for each replaced one."""
    exchanged: list[int] = []
    for loaded in partitions:
        for target in session.copied_tables(loaded.begun):
            (replacements.begin if target.table in loaded.replacing else replacements.forget)(session.connection, target)
        exchanged += [replacements.finish(session.connection, target) for target in session.copied_tables(loaded.replaced)]
    return exchanged


class PostgresSink:
    """``Sink`` of a target database: exactly once, by the row in ``pgsluice.applied``.

    ``inline_bytes`` is how much COPY text a receipt may carry before its pieces are staged by the task, ``most_stages``
    how many staging tables a batch may have before pieces are parked. ``hands_over``: tasks may hand text to the driver
    in files.
    """

    definitions = DefinitionUse.ALTERS

    def __init__(
        self,
        settings: WorkerSettings,
        sink_settings: PostgresSinkSettings,
        inline_bytes: int = INLINE_BYTES,
        most_stages: int = MOST_STAGES,
        *,
        hands_over: bool | None = None,
    ) -> None:
        """``hands_over`` is true by default, but not if Spark runs tasks on other machines."""
        self._settings = sink_settings
        self._names = StageNames(settings.group, settings.name)
        self._row = AppliedRow(settings.group, settings.name)
        self._copied = CopiedMessages(settings.group, settings.name)
        self._replacements = Replacements(settings.group, settings.name)
        self._known_tables = KnownTables.of(settings.group, settings.name)
        self._policies = Policies.parse(settings.ddl, settings.ddl_policy)
        self._missed: Sequence[MissedChanges] = ()
        is_replay = self._known_tables.worker != settings.name
        self._missing_rows = MissingRowPolicy(sink_settings.on_missing_row, is_replay=is_replay)
        self._unchanged: UnchangedRows | None = None
        self._most_refused = settings.max_dead_letters
        self._writer = PostgresWriter(sink_settings, self._names, inline_bytes, self._policies, most_refused=self._most_refused)
        is_local_spark = is_local(settings.spark.get("spark.master", DEFAULT_MASTER))
        self._handover = HandoverDirectory() if (is_local_spark if hands_over is None else hands_over) else None
        self._session: DriverSession | None = None
        self._applied = NOTHING_APPLIED
        self._in_doubt: Applied | None = None
        """Position of the last transaction, while its end is not known: the connection broke."""
        self._attempts = Attempts(most_stages)
        self._accepted: Collection[PublishedDefinition] = ()
        self._statements = StatementWatch(sink_settings)
        self._has_leftovers = False
        """True if staging tables of this worker may be left."""

    keeps_catch_up = True

    @property
    def delivery(self) -> Delivery:
        """The next batch is written as this one is, unless the target refused something lately."""
        return Delivery.AHEAD if self._attempts.is_ordinary else Delivery.COLLECTED

    @property
    def task_files(self) -> Sequence[str]:
        return files_of(self._settings)

    def report_to(self, pulse: Pulse) -> None:
        self._statements.pulse = pulse

    def open(self) -> Applied:
        """Creates pgsluice's own tables when they are missing, waits for a transaction of a predecessor that is still
        moving the position, and drops obsolete staging tables."""
        self.close()
        warn_of_unverified(self._settings.target, "target", "target-")
        check_role(self._settings)
        session = self._connect()
        connection = session.connection
        try:
            ensure_tables(connection)
            if self._row.ensure(connection) and self._known_tables.worker == self._names.worker:
                self._known_tables.forget(connection)
            self._attempts.limit_stages(lock_capacity(connection) // LOCKS_PER_STAGE)
            self._applied = self._await_position(connection) or NOTHING_APPLIED
            self._missed = self._known_tables.missed(connection)
            drop_stages(connection, leftover_stages(connection, self._names, None))
        except PgsluiceError:
            connection.close()
            raise
        except psycopg.Error as error:
            connection.close()
            raise self._attempts.failure(error, None, "preparing schema pgsluice") from None
        self._session, self._in_doubt = session, None
        if session.referencing is not None and self._settings.disable_foreign_keys is None:
            grant = grant_of_replica_role(connection)
            _log.info(
                "the target's foreign keys and ordinary triggers act on replicated rows: the target user may not turn them off",
                remedy=f"run there: {grant}" if grant else "connect as a superuser",
            )
        return self._applied

    def foresee(self, tables: Sequence[Table]) -> Sequence[str]:
        """Names tables that hold rows already, and notes where rows will go, for definitions that come before them."""
        try:
            session = self._connected()
            session.targets.foresee(session.connection, tables)
            return held_already(session.connection, tables)
        except psycopg.Error as error:
            raise self._attempts.failure(error, None, "looking at the target's tables") from None

    def renumber(self, applied: Applied) -> None:
        """Moves the position to where the stream holds what is applied now."""
        try:
            connection = self._connected().connection
            with connection.transaction():
                self._row.lock_at(connection, self._applied)
                self._row.move(connection, applied)
        except psycopg.Error as error:
            raise target_error(error, None, "moving the position") from None
        self._applied = applied

    def writer(self) -> PostgresWriter:
        handover = "" if self._handover is None else self._handover.path
        return replace(self._attempts.next_writer(self._writer), handover=handover)

    def accept(self, definitions: Collection[PublishedDefinition]) -> None:
        self._accepted = definitions

    def rejected(self) -> None:
        self._attempts.rejected()

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Commits one transaction; skips receipts that are applied already. After TransientError, RejectedChanges and
        WriteAgain the partitions have to be written again: stages may be gone, or are needed in another form."""
        with self._attempts.receiving():
            received = list(receipts)
        self._attempts.begin_commit()
        try:
            session = self._connected()
            rest = not_applied(received, self._applied, stream_created)
            if not rest:
                return self._applied
            position = self._applied
            for receipt in rest:
                position = position.after(receipt, stream_created)
            with self._statements.over(session.connection):
                if rest[0].copied:
                    self._finish_copied(session, rest, position)
                else:
                    self._finish_changes(session, rest, position)
        except (psycopg.Error, PieceError) as error:
            cause, table = (error.cause, error.table) if isinstance(error, PieceError) else (error, None)
            if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
                self.close()  # the server is no longer a primary: connecting again finds the current one
            elif isinstance(error, psycopg.errors.LockNotAvailable) and self._session is not None:
                self._session.connection.close()  # the position's: the next session reports its holder, and who may end that
            doing = f"applying messages {received[0].first_sequence} to {received[-1].last_sequence}"
            raise self._attempts.failure(cause, table, doing) from None
        if position.catch_up is not None and self._applied.catch_up is None:
            session.warn_of_foreign_keys()
        self._applied, self._in_doubt = position, None
        self._has_leftovers = self._attempts.committed() or self._has_leftovers
        lane = rest[0].lane
        self._clean_up(session, position.caught_up_sequence if lane is Lane.COPIED else position.sequence_in(lane))
        return self._applied

    def missed(self) -> Sequence[MissedChanges]:
        """Returns the changes that met no row, by table, for ``CountingSink``."""
        return self._missed

    def expect_missing(self, may_leave_out: MayLeaveOut) -> None:
        """Implements ``MissingRowSink``."""
        self._missing_rows.expect_missing(may_leave_out)

    def unchanged(self) -> UnchangedRows | None:
        """Implements ``ComparingSink``. Unknown for a commit whose answer was lost."""
        return self._unchanged

    def finish_copy(self) -> None:
        """Builds the keys of the tables that were created for the copy; that may take a while, and batches of other
        tables continue: so it has a separate connection."""
        session = self._connect()
        try:
            with self._statements.over(session.connection):
                session.build_keys()
        except psycopg.Error as error:
            raise target_error(error, None, "building keys") from None
        finally:
            session.connection.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
        if self._handover is not None:
            self._handover.close()
        self._statements.close()
        self._session = None

    def _connected(self) -> DriverSession:
        """Returns the session, a new one after a broken connection; by then it is clear what became of the last
        transaction."""
        is_new = self._session is None or self._session.connection.closed
        if self._session is None or is_new:
            self._session = self._connect()
        if is_new or self._in_doubt is not None:
            found = self._await_position(self._session.connection)
            if self._in_doubt is not None:
                self._applied = self._in_doubt if found == self._in_doubt else self._applied
                self._missed = self._known_tables.missed(self._session.connection)
                self._in_doubt = None
        return self._session

    def _await_position(self, connection: Connection) -> Applied | None:
        """Returns the position, when no session before this one, nor a predecessor's, still moves it. One may be
        applying a large batch, and is waited for as long as that takes: nothing fails."""
        with self._statements.over(connection, Cause.OTHER, ends_own=True), connection.transaction():
            connection.execute("SET LOCAL lock_timeout = 0")
            return self._row.lock(connection)

    def _connect(self) -> DriverSession:
        pending_keys = PendingKeys(self._names.group, self._names.worker)
        return DriverSession.connect(self._settings, pending_keys, self._known_tables, self._policies)

    def _finish_copied(self, session: DriverSession, receipts: Sequence[Receipt], position: Applied) -> None:
        """Moves the position over rows that are in their tables already, and empties tables that are copied again."""
        partitions = [LoadedPartition.decode(receipt.body) for receipt in receipts]
        if any(loaded.restarted for loaded in partitions):
            session.refit(table for loaded in partitions for table in loaded.restarted)
        restarted = session.copied_tables(table for loaded in partitions for table in loaded.restarted)
        filled = session.copied_tables(dict.fromkeys(table for loaded in partitions for table in loaded.filled))
        session.copied_tables(table for loaded in partitions for table in (*loaded.begun, *loaded.replaced))
        session.log_missing_sequences()
        connection = session.connection
        with connection.transaction():
            self._row.lock_at(connection, self._applied)
            self._copied.check(connection, [sequence for loaded in partitions for sequence in loaded.sequences])
            for target in restarted:
                empty_table(connection, target)
            self._known_tables.clear_missed(connection, [target.table for target in restarted])
            exchanged = _keep_replacements(session, self._replacements, partitions)
            for target in filled:
                for sequence in target.sequences:
                    column = target.columns[sequence.column].name
                    connection.execute(advance_statement(sequence, target.identifier, column))
            unchanged = self._copied.forget(connection, position.snapshot_sequence) + sum(exchanged)
            self._row.move(connection, position, copied_rows=sum(receipt.changes for receipt in receipts))
            run = max(loaded.run for loaded in partitions)
            of_run = self._row.add_unchanged(connection, run, unchanged) if run else 0
            self._in_doubt = position
        if run:
            self._unchanged = UnchangedRows(position.snapshot_sequence, of_run)
        if restarted:
            self._missed = self._known_tables.missed(connection)
        session.expect_keys()

    def _finish_changes(self, session: DriverSession, receipts: Sequence[Receipt], position: Applied) -> None:
        if position.catch_up is None:  # others do not wait for a table that is being filled
            session.build_keys()
        partitions = [FoldedPartition.decode(receipt.body) for receipt in receipts]
        if any(folded.is_refused for folded in partitions):
            self._attempts.label_rows()
            raise WriteAgain
        changes = sum(receipt.changes for receipt in receipts)
        batch = Batch(partitions, receipts[0].first_sequence, position, changes)
        self._has_leftovers = self._has_leftovers or bool(batch.stages) or bool(batch.parked_tables)
        self._apply(session, batch)
        self._attempts.changes_applied()

    def _apply(self, session: DriverSession, batch: Batch) -> None:
        """Applies the batch. A target table may have been altered since it was read; then a second read finds the
        error, or there is none."""
        known = session.knows_any(batch.tables)
        try:
            self._transact(session, batch)
        except DirectCopyError:
            # Where one table has rows that were assumed to be new, others may too.
            session.stages.not_copied_into.update(batch.tables)
            self._apply(session, batch)
        except PieceError as error:
            if not known or is_transient(error.cause):
                raise self._attempts.refusal(error, str(batch)) from None
            session.forget()
            self._apply(session, batch)

    def _transact(self, session: DriverSession, batch: Batch) -> None:
        session.label_rows(labelled=self._attempts.labels_rows)
        if not batch.defines:
            session.prepare(batch.tables, batch.partitions)
        connection = session.connection
        with session.altering() if batch.defines else nullcontext(), connection.transaction():
            self._row.lock_at(connection, self._applied)
            check_staged(connection, batch.stages)
            check_parked(connection, batch.parked_tables)
            row_merge = None
            if self._attempts.tries_rows:
                row_merge = RowMerge(connection, session.targets, session.stages, RefusalBound(self._most_refused))
            merge = Merge(
                connection,
                session.targets,
                session.stages,
                row_merge,
                session.referencing,
                names_missing=self._attempts.labels_rows,
                truncates=self._attempts.truncates,
            )
            if batch.defines:
                _merge_between_definitions(session, merge, batch.partitions, self._accepted)
            else:
                merge.apply(batch.partitions)
            if row_merge is not None and row_merge.rejections:
                self._attempts.label_rows()
                row_merge.check()
            self._judge_missing(merge.missing)
            if len(batch.stages) <= DROPPED_AT_ONCE:
                drop_stages(connection, batch.stages)
            self._known_tables.count_missed(connection, merge.missing)
            self._row.move(connection, batch.position, changes=batch.changes)
            self._in_doubt = batch.position
        if merge.missing:
            self._missed = self._known_tables.missed(connection)

    def _judge_missing(self, missing: Missing) -> None:
        """Raises WriteAgain where the positions of ``missing`` have to be found; else as ``MissingRowPolicy.judge``."""
        if self._attempts.labels_rows:
            self._missing_rows.judge(missing)
        elif self._missing_rows.asks_which(missing, self._missed):
            self._attempts.name_missing()
            raise WriteAgain

    def _clean_up(self, session: DriverSession, up_to_sequence: int) -> None:
        """Drops what the merge did not, and what attempts left whose work was done by others, of the lane that was applied up to
        there. The batch is applied whatever happens here."""
        if self._handover is not None:
            self._handover.clear(up_to_sequence)
        if not self._has_leftovers:
            return
        try:
            drop_stages(session.connection, leftover_stages(session.connection, self._names, up_to_sequence))
            self._has_leftovers = False
        except psycopg.Error as error:
            _log.warning("staging tables could not be dropped yet", sqlstate=error.sqlstate)
