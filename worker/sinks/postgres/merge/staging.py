"""The stages where a piece's rows wait until the merge reads them.

A large piece is copied by its task into a separate unlogged table in schema ``pgsluice``, which is dropped with the
merge or, when there are many, after it. Beyond a number of tables it is parked as text (``parked_text``). A small one
travels in the receipt, and the driver copies it into a temporary table that its session keeps for pieces of that shape.
An unlogged table is empty after a crash of the target: the merge must check before it trusts one (``check_staged``).
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from psycopg import sql
from psycopg.abc import Buffer

from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.postgres.fold.piece import Piece, PieceKind
from pgsluice.worker.sinks.postgres.merge.statements import MOST_STAGE_COLUMNS, merge_statements, stage_columns, stage_query
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.own.parked_text import rows_gone
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.table import TargetTable

MAX_SESSION_STAGES = 500
"""A temporary table costs its session some memory, and about two milliseconds when it has to be made again."""

DELETED_BYTES_BEFORE_TRUNCATE = 256 * 1024
"""TRUNCATE takes a millisecond or two and DELETE next to nothing, but leaves dead rows to scan. (ON COMMIT DELETE ROWS would
empty all temporary tables of the session at each commit, used or not.)"""

LOCKS_PER_STAGE = 8
"""Reading a stage takes up to three locks, for the table, its large values and their index. Most of the target's locks are left
for its tables and for others."""

DROPPED_AT_ONCE = 32
"""Number of staging tables dropped in one transaction: each takes five locks, two of them on its row types, and a
target has some thousand locks for all its sessions, or some hundred when its settings are small."""

PART_COLUMNS = 300
"""Limit for each of the tables that make up a stage for wide rows. A value takes 24 bytes at most when a page has no
room for it, so that many fit into a page, whatever they are."""

HAS_MERGE = 150_000
"""MERGE came with PostgreSQL 15."""

_STAGES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)
"""


@dataclass(frozen=True, slots=True)
class StageNames:
    """Names of one worker's staging tables: ``stage_<hash of group and worker>_<first sequence>_<attempt>_<number>``. The
    names themselves would not fit: an identifier has 63 bytes."""

    group: str
    worker: str

    @property
    def prefix(self) -> str:
        return f"stage_{hashlib.blake2b(f'{self.group}/{self.worker}'.encode(), digest_size=6).hexdigest()}_"

    def parked_table(self, first_sequence: int) -> str:
        """Returns the table for parked text of one partition (``parked_text``)."""
        return f"{self.prefix}{first_sequence}_parked"

    def of_attempt(self, first_sequence: int) -> Iterable[str]:
        """Yields names for a single attempt to write one partition; no other attempt gets the same."""
        attempt = uuid.uuid4().hex[:12]
        return (f"{self.prefix}{first_sequence}_{attempt}_{number}" for number in itertools.count(1))

    def first_sequence(self, name: str) -> int:
        return int(name.removeprefix(self.prefix).split("_", 1)[0])


_COMPRESSED = """
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attstorage IN ('x', 'm')
"""
_LABELS = sql.SQL("ALTER TABLE {} ADD COLUMN n bigint, ADD COLUMN position text")
"""Adds the columns of ``blamed_positions``."""


def create_stage(connection: Connection, name: str, target: TargetTable, kind: PieceKind, *, labelled: bool = False) -> None:
    """Makes the table ``name``, for rows with labels when ``labelled``. It is autovacuum's business to leave it alone:
    it is gone in a moment."""
    connection.execute(
        sql.SQL("CREATE UNLOGGED TABLE {} WITH (autovacuum_enabled = off) AS {}").format(
            own_table(name), stage_query(target, stage_columns(target, kind))
        )
    )
    if labelled:
        connection.execute(_LABELS.format(own_table(name)))


def keep_uncompressed(connection: Connection, name: str) -> None:
    """Turns off compression, for rows with large values. A value that does not compress would be tried twice, here and
    by the merge, which takes the server most of its time; one that does costs a little more when only the merge, in one
    session, compresses it."""
    found = connection.execute(_COMPRESSED, [own_table(name).as_string()]).fetchall()
    actions = sql.SQL(", ").join(
        sql.SQL("ALTER COLUMN {} SET STORAGE EXTERNAL").format(sql.Identifier(column)) for (column,) in found
    )
    if found:
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(own_table(name), actions))


def index_rows(connection: Connection, name: str) -> None:
    """Indexes rows for the merge, which may search rows by their number many times."""
    connection.execute(sql.SQL("CREATE INDEX ON {} (n)").format(own_table(name)))


def copy_into(connection: Connection, table: sql.Composable, text: Iterable[Buffer], *, new: bool) -> int:
    """Returns how many rows the table took. ``new``: the table was created in this transaction, so its rows may be written as
    frozen."""
    options = sql.SQL(" WITH (FREEZE)" if new else "")
    return copy_text(connection, sql.SQL("COPY {} FROM STDIN{}").format(table, options), text)


def copy_text(connection: Connection, statement: bytes | sql.Composed, text: Iterable[Buffer]) -> int:
    """Copies ``text``, in blocks of any size. Returns the server's count of rows."""
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for block in text:
                copy.write(block)
        return cursor.rowcount


def check_staged(connection: Connection, names: Iterable[str]) -> None:
    """Raises TransientError when one of these tables is missing or empty: then the rows have to be staged again."""
    for name in names:
        identifier = own_table(name)
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [identifier.as_string()]).fetchone()
        has_rows = found == (True,) and connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(identifier)).rowcount == 1
        if not has_rows:
            raise rows_gone()


def lock_capacity(connection: Connection) -> int:
    """Returns how many locks the target's settings promise to all sessions together (manual:
    max_locks_per_transaction)."""
    query = "SELECT current_setting('max_locks_per_transaction')::int * current_setting('max_connections')::int"
    found = connection.execute(query).fetchone()
    assert found is not None, "a query without FROM has one row"
    return int(found[0])


def drop_stages(connection: Connection, names: Sequence[str]) -> None:
    """Drops stages, DROPPED_AT_ONCE in a statement, which is a transaction unless the caller has one open."""
    for first in range(0, len(names), DROPPED_AT_ONCE):
        identifiers = sql.SQL(", ").join(own_table(name) for name in names[first : first + DROPPED_AT_ONCE])
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(identifiers))


def leftover_stages(connection: Connection, names: StageNames, up_to_sequence: int | None) -> list[str]:
    """Returns this worker's staging tables, including parked text, whose first sequence is at most ``up_to_sequence``
    (None: all of them). Once the position has passed it, they are never merged: the batch was applied, or the task that
    made them was repeated elsewhere."""
    found = [row[0] for row in connection.execute(_STAGES, [TARGET_SCHEMA, names.prefix]).fetchall()]
    return [name for name in found if up_to_sequence is None or names.first_sequence(name) <= up_to_sequence]


def is_wide(table: Table, kind: PieceKind) -> bool:
    """Returns whether a stage for such rows is more than one table: where it has more columns than one may have, or two
    rows in one, which a page may have no room for.
    """
    columns, key = len(table.columns), len(table.key)
    match kind:
        case PieceKind.INSERT | PieceKind.UPSERT | PieceKind.DELETE:
            return False
        case PieceKind.PATCH:
            return columns + 1 > MOST_STAGE_COLUMNS
        case PieceKind.MOVE | PieceKind.MOVE_IN_ORDER:
            return columns + key + 2 > MOST_STAGE_COLUMNS
        case PieceKind.IN_ORDER:
            return 2 * columns + 2 > PART_COLUMNS
        case unreachable:
            assert_never(unreachable)


class Stage:
    """A table that holds rows of one shape, and the statements that merge them, rendered once.

    ``parts`` are the tables that it consists of, where that is more than one, and ``widths`` how many of a row's fields each
    holds; ``identifier`` is their join then."""

    def __init__(
        self,
        identifier: sql.Composable,
        target: TargetTable,
        *,
        has_merge: bool,
        parts: Sequence[sql.Identifier] = (),
        widths: Sequence[int] = (),
    ) -> None:
        self.identifier = identifier
        self.tables: Sequence[sql.Composable] = parts or (identifier,)
        self._widths = widths
        self.deleted_bytes = 0
        self.target = target
        self._has_merge = has_merge
        self._rendered: dict[PieceKind, list[bytes]] = {}

    def fill(self, connection: Connection, text: Iterable[bytes]) -> None:
        """``text`` is COPY text in blocks of any size."""
        if not self._widths:
            copy_into(connection, self.identifier, text, new=False)
            return
        rows = [line.split(b"\t") for line in b"".join(text).split(b"\n")[:-1]]
        start = 0
        for table, width in zip(self.tables, self._widths, strict=True):
            part = (b"\t".join((b"%d" % number, *row[start : start + width])) + b"\n" for number, row in enumerate(rows))
            copy_into(connection, table, part, new=False)
            start += width

    def statements(self, kind: PieceKind) -> list[bytes]:
        """Returns ``merge_statements`` of ``kind``."""
        if kind not in self._rendered:
            self._rendered[kind] = [
                statement.as_bytes()
                for statement in merge_statements(self.target, kind, self.identifier, has_merge=self._has_merge)
            ]
        return self._rendered[kind]


class SessionStages:
    """The temporary tables of one session; the least recently used goes first when there are too many.

    ``labelled``: they are for rows with labels; set it while the session has no stage. ``not_copied_into`` are tables
    whose new rows go through a stage too, because COPY into them failed.
    """

    def __init__(self, connection: Connection) -> None:
        self.labelled = False
        self.not_copied_into: set[Table] = set()
        self._connection = connection
        self._stages: OrderedDict[tuple[TargetTable, PieceKind], Stage] = OrderedDict()
        self._numbers = itertools.count(1)

    def goes_straight(self, piece: Piece, target: TargetTable) -> bool:
        """Returns whether the piece's rows are copied right into their table: they are new, and not looked at one by
        one.
        """
        is_possible = piece.kind is PieceKind.INSERT and target.takes_whole_rows and not target.sequences
        return is_possible and not self.labelled and piece.table not in self.not_copied_into

    def prepare(self, target: TargetTable, kind: PieceKind) -> None:
        """Makes sure that there is one. In a transaction that may be rolled back all stages are of that transaction, and
        ``roll_back`` follows."""
        if (target, kind) in self._stages:
            self._stages.move_to_end((target, kind))
            return
        columns = stage_columns(target, kind)
        if is_wide(target.table, kind) and not self.labelled:
            self._stages[target, kind] = self._in_parts(target, kind, columns)
            return
        identifier = self._create(target, columns)
        if self.labelled:
            self._connection.execute(_LABELS.format(identifier))
        self._stages[target, kind] = self.of(identifier, target)

    def _create(self, target: TargetTable, columns: Sequence[sql.Composable]) -> sql.Identifier:
        identifier = sql.Identifier("pg_temp", f"stage_{next(self._numbers)}")
        self._connection.execute(sql.SQL("CREATE TEMPORARY TABLE {} AS {}").format(identifier, stage_query(target, columns)))
        return identifier

    def _in_parts(self, target: TargetTable, kind: PieceKind, columns: Sequence[sql.Composable]) -> Stage:
        """Returns tables with some of the columns each, which have the number of the row in common. Joined with the
        target, the columns of a stage are more than PostgreSQL takes in one step: so they are put together first, where
        they are not too many."""
        size = PART_COLUMNS if kind is PieceKind.IN_ORDER else MOST_STAGE_COLUMNS // 2
        slices = [columns[first : first + size] for first in range(0, len(columns), size)]
        parts = [self._create(target, [sql.SQL("NULL::bigint AS part_row"), *few]) for few in slices]
        for part in parts:
            self._connection.execute(sql.SQL("CREATE INDEX ON {} (part_row)").format(part))
        others = sql.SQL("").join(sql.SQL(" JOIN {} USING (part_row)").format(part) for part in parts[1:])
        joined = sql.SQL("({}{})").format(parts[0], others)
        if kind is not PieceKind.IN_ORDER:
            joined = sql.SQL("(SELECT * FROM {} AS joined OFFSET 0)").format(joined)
        return Stage(joined, target, has_merge=self._has_merge, parts=parts, widths=[len(few) for few in slices])

    @property
    def _has_merge(self) -> bool:
        return self._connection.info.server_version >= HAS_MERGE

    def of(self, rows: sql.Composable, target: TargetTable) -> Stage:
        """Returns a stage for rows that are in another table, or in a query."""
        return Stage(rows, target, has_merge=self._has_merge)

    def __getitem__(self, shape: tuple[TargetTable, PieceKind]) -> Stage:
        return self._stages[shape]

    def empty(self, stage: Stage, size: int) -> None:
        """Takes out what was put in: ``size`` bytes of COPY text."""
        stage.deleted_bytes += size
        truncates = stage.deleted_bytes > DELETED_BYTES_BEFORE_TRUNCATE
        for table in stage.tables:
            self._connection.execute(sql.SQL("TRUNCATE TABLE {}" if truncates else "DELETE FROM {}").format(table))
        if truncates:
            stage.deleted_bytes = 0

    def trim(self) -> None:
        """Drops what is more than MAX_SESSION_STAGES; as ``prepare``."""
        while len(self._stages) > MAX_SESSION_STAGES:
            self._drop(next(iter(self._stages)))

    def clear(self) -> None:
        for shape in list(self._stages):
            self._drop(shape)

    def roll_back(self) -> None:
        """Notes that the transaction that made all of them was rolled back."""
        self._stages.clear()

    def _drop(self, shape: tuple[TargetTable, PieceKind]) -> None:
        tables = sql.SQL(", ").join(self._stages.pop(shape).tables)
        self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(tables))
