"""What a pipeline reads, and how its rows are written: pure."""

from __future__ import annotations

import enum
import hashlib
import zlib
from dataclasses import dataclass, field

import orjson

from pgsluice.shared.wire.table import Table

DEFAULT_BATCH_ROWS = 50_000
DEFAULT_TASKS = 4
DEFAULT_RETRIES = 3


class RunMode(enum.StrEnum):
    """What a run reads that is not told to be full."""

    FULL = "full"
    """All rows, each time."""
    INCREMENTAL = "incremental"
    """Rows beyond the checkpoint, and those that may have come late."""


class WriteMode(enum.StrEnum):
    """What becomes of a row at the target."""

    APPEND = "append"
    """It is added."""
    MERGE = "merge"
    """It takes the place of the one with its key."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``schema`` and ``table`` are the target's. ``key`` are columns that tell the query's rows apart. ``incremental_key`` is ""
    in full mode; rows are ordered by it and then by ``id_key``. ``overlap`` is text that the server can take as an interval or a
    number, "" where none was given. ``skips_nulls``: rows without a value there are left out; else the run is refused.
    ``batch_rows`` is how many rows a task reads at once, ``tasks`` how many run at the same time."""

    name: str
    group: str
    query: str = field(repr=False)
    schema: str
    table: str
    key: tuple[str, ...]
    mode: RunMode = RunMode.FULL
    write: WriteMode = WriteMode.MERGE
    incremental_key: str = ""
    id_key: tuple[str, ...] = ()
    overlap: str = ""
    skips_nulls: bool = False
    batch_rows: int = DEFAULT_BATCH_ROWS
    tasks: int = DEFAULT_TASKS
    retries: int = DEFAULT_RETRIES
    statement_timeout_s: float = 0.0
    search_path: str = "public"

    @property
    def cursor(self) -> tuple[str, ...]:
        """The columns that rows are ordered by. They tell the rows apart."""
        if not self.incremental_key:
            return self.key
        others = (column for column in self.id_key or self.key if column != self.incremental_key)
        return (self.incremental_key, *others)

    @property
    def oid(self) -> int:
        """Stands for the target's table where the oid of a source's table stands otherwise."""
        return zlib.crc32(f"{self.schema}.{self.table}".encode()) or 1

    @property
    def session(self) -> tuple[tuple[str, str], ...]:
        """Settings of every session that reads the query."""
        timeout_ms = round(self.statement_timeout_s * 1000)
        return (("search_path", self.search_path), ("statement_timeout", str(timeout_ms)), ("jit", "off"))

    def fingerprint(self, table: Table, origin: str) -> str:
        """Of all that has to stay for a checkpoint to mean what it meant. ``origin`` names the server and its database."""
        columns = [[column.name, column.type_name] for column in table.columns]
        said = [self.query, self.schema, self.table, self.key, self.cursor, self.write, self.search_path, columns, origin]
        return hashlib.sha256(orjson.dumps(said)).hexdigest()
