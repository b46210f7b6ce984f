"""Sessions at the target: the driver's, which merges, and those of tasks, which stage and load.

Both keep a connection and what they know of the target's tables (``TargetTables``) from batch to batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg

from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.sinks.postgres.definitions.alteration import Alteration
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition, Piece, StagedRows
from pgsluice.worker.sinks.postgres.merge.referencing_keys import ReferencingKeys
from pgsluice.worker.sinks.postgres.merge.staging import SessionStages
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables
from pgsluice.worker.sinks.postgres.own.pending_keys import PendingKeys
from pgsluice.worker.sinks.postgres.target.catalog import find_table, tables_with_foreign_keys
from pgsluice.worker.sinks.postgres.target.connection import (
    DRIVER_SESSION,
    TASK_SESSION,
    Connection,
    connect,
    disable_foreign_keys,
)
from pgsluice.worker.sinks.postgres.target.failure import PieceError
from pgsluice.worker.sinks.postgres.target.sequences import MissingSequences
from pgsluice.worker.sinks.postgres.target.table import TargetTable
from pgsluice.worker.sinks.postgres.target_tables import TargetTables

log = telemetry.logger(__name__)
T = TypeVar("T")


def _connect(settings: PostgresSinkSettings, application_name: str) -> tuple[Connection, bool]:
    """Returns a connection, and whether the target's foreign keys are off in it. Raises PgsluiceError."""
    connection = connect(settings, application_name)
    try:
        return connection, disable_foreign_keys(connection, settings.disable_foreign_keys)
    except PgsluiceError:
        connection.close()
        raise


class DriverSession:
    """The driver's state between batches: its connection, the target's tables, temporary tables for small pieces. A new
    connection needs a new one."""

    def __init__(
        self,
        connection: Connection,
        settings: PostgresSinkSettings,
        pending_keys: PendingKeys,
        known_tables: KnownTables,
        policies: Policies,
        *,
        checks_foreign_keys: bool,
    ) -> None:
        missing_sequences = MissingSequences() if settings.sync_sequences else None
        self.connection = connection
        self.targets = TargetTables(settings, pending_keys, known_tables, policies, missing_sequences)
        self.stages = SessionStages(connection)
        self.referencing = ReferencingKeys(connection) if checks_foreign_keys else None
        self._alteration = Alteration(connection, known_tables, policies)
        self._missing_sequences = missing_sequences
        self._pending_keys = pending_keys
        self._may_lack_keys = True

    @classmethod
    def connect(
        cls, settings: PostgresSinkSettings, pending_keys: PendingKeys, known_tables: KnownTables, policies: Policies
    ) -> DriverSession:
        """Raises PgsluiceError."""
        connection, are_off = _connect(settings, DRIVER_SESSION)
        return cls(connection, settings, pending_keys, known_tables, policies, checks_foreign_keys=not are_off)

    def expect_keys(self) -> None:
        """Notes that tables were copied, so keys may be pending."""
        self._may_lack_keys = True

    def build_keys(self) -> None:
        """Builds pending keys, if there are any. Raises PgsluiceError."""
        if self._may_lack_keys:
            self._pending_keys.build(self.connection)
            self._may_lack_keys = False

    def knows_any(self, tables: Iterable[Table]) -> bool:
        return any(table in self.targets for table in tables)

    def copied_tables(self, tables: Iterable[Table]) -> list[TargetTable]:
        """Returns the tables that tasks loaded rows into, and remembered."""
        wanted = list(tables)
        self.targets.look_at(self.connection, wanted)
        return [self.targets[table] for table in wanted]

    def prepare(self, tables: Iterable[Table], partitions: Iterable[FoldedPartition]) -> None:
        """Creates what a merge of ``partitions`` needs: each in a separate transaction, or within ``altering``. Raises
        PieceError."""
        self.targets.look_at(self.connection, tables, remember=True)
        self.log_missing_sequences()
        self.stages.trim()
        for folded in partitions:
            for piece in folded.pieces:
                # a single kind: prepares stages for all pieces without their own
                if not isinstance(piece.content, StagedRows) and not self.stages.goes_straight(piece, self.targets[piece.table]):
                    self._prepare_stage(piece)

    @contextmanager
    def altering(self) -> Iterator[None]:
        """Around a transaction that alters tables: temporary tables and what is known of the target's are of before it, or made
        in it, and go with it when it is rolled back."""
        self.forget()
        try:
            yield
        except BaseException:
            self.targets.forget()
            self.stages.roll_back()
            raise

    def alter(self, definitions: Iterable[PublishedDefinition], accepted: Collection[PublishedDefinition]) -> None:
        """Within ``altering``. Every table is looked at again afterwards. Raises PgsluiceError."""
        for definition in definitions:
            self._alteration.apply(definition, is_accepted=definition in accepted)
        self.forget()

    def refit(self, tables: Iterable[Table]) -> None:
        """Refits the tables before they are emptied, in a separate transaction; then every table is read again. Raises
        PgsluiceError."""
        with self.connection.transaction():
            for table in tables:
                self._alteration.refit(table)
        self.forget()

    def log_missing_sequences(self) -> None:
        if self._missing_sequences is not None:
            self._missing_sequences.log()

    def warn_of_foreign_keys(self) -> None:
        """Warns of foreign keys; call it when tables lag behind the others. The position has moved by then, so a
        failure here is only logged."""
        if self.referencing is None:
            return
        try:
            tables = tables_with_foreign_keys(self.connection)
        except psycopg.Error as error:
            log.warning("the target did not report whether it has foreign keys", error=type(error).__name__)
            return
        if tables:
            log.warning(
                "some tables lag for a while, and foreign keys of the target refuse rows that refer to rows which do not exist"
                " yet",
                tables=", ".join(tables),
                remedy="set target-disable-foreign-keys: true",
            )

    def _prepare_stage(self, piece: Piece) -> None:
        """Raises PieceError: the table may have been altered since it was looked at."""
        try:
            self.stages.prepare(self.targets[piece.table], piece.kind)
        except psycopg.Error as error:
            raise PieceError(piece.table, error, has_rows=False) from None

    def label_rows(self, *, labelled: bool) -> None:
        """Returns whether the next pieces' rows have labels. Then every table is looked at again: a row must not be
        refused for what its table was like earlier.
        """
        if labelled or self.stages.labelled:
            self.forget()
        self.stages.labelled = labelled

    def forget(self) -> None:
        """Forgets tables: the next ``prepare`` reads every table again."""
        self.targets.forget()
        self.stages.clear()


class PostgresTaskSession:
    """A task's state between partitions, one per Python worker process and target: a connection and the target's
    tables.

    ``not_empty`` are tables in which copied rows met rows of the same key.
    """

    def __init__(
        self, settings: PostgresSinkSettings, pending_keys: PendingKeys, known_tables: KnownTables, policies: Policies
    ) -> None:
        self.not_empty: set[Table] = set()
        self._settings = settings
        self._connection: Connection | None = None
        self._targets = TargetTables(settings, pending_keys, known_tables, policies)

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection, _ = _connect(self._settings, TASK_SESSION)
            # What a crash of the target takes of a task's work is noticed and done again; waiting for the disk buys nothing.
            self._connection.execute("SET synchronous_commit = off")
        return self._connection

    def target_table(self, table: Table, *, copied: bool = False) -> TargetTable:
        """``copied``: for rows of a snapshot, which are loaded here. Where changes go is remembered by the driver."""
        self._targets.look_at(self.connection(), [table], copied=copied, remember=copied)
        return self._targets[table]

    def make_table(self, table: Table) -> None:
        """Creates a missing table for rows of a snapshot. Does not check an existing one: the driver may have to alter
        it."""
        if find_table(self.connection(), table.schema, table.name) is None:
            self.target_table(table, copied=True)

    def make_keyed_table(self, table: Table) -> None:
        """Creates a missing table for rows of a pipeline, which meet each other by key from the first run on. An
        existing one has to fit."""
        self._targets.forget()
        self._targets.look_at(self.connection(), [table], remember=True)

    def forget(self) -> None:
        """Forgets the tables: each is checked again."""
        self._targets.forget()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._targets.forget()
        self.not_empty.clear()


TaskSessionKey = tuple[PostgresSinkSettings, PendingKeys, KnownTables, Policies]
"""The parameters of a task session."""

_sessions: dict[TaskSessionKey, PostgresTaskSession] = {}


def in_task_session(key: TaskSessionKey, work: Callable[[PostgresTaskSession], T]) -> T:
    """Returns the result of ``work``, called with this process's session. One kept from an earlier task may be broken,
    or outdated; then a new one tries again. Raises what ``work`` raises."""
    session = _sessions.setdefault(key, PostgresTaskSession(*key))
    while True:
        kept = session.is_open
        try:
            return work(session)
        except PieceError:
            session.close()
            if not kept:
                raise
