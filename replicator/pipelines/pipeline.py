"""The definition of a pipeline's query, and how its rows are written: pure."""

from __future__ import annotations

import enum
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson

from pgsluice.replicator.pipelines.steps.step import Step, has_sql
from pgsluice.shared.pipelines.run_schedule import RunSchedule
from pgsluice.shared.spark.spark_settings import DEFAULT_MASTER, local_tasks
from pgsluice.shared.wire.table import Table

SMALLEST_BATCH_ROWS = 50_000
"""Rows of a batch without a configured size: reading them takes less time than the begin of another task."""
BATCHES_PER_TASK = 4
"""Batches per task without a configured number: the server joins and sorts again for each batch, and the slowest one is
waited for."""
MOST_DEFAULT_TASKS = 4
DEFAULT_RETRIES = 3
DEFAULT_MAX_DEAD_LETTERS = 1000  # a worker's, too
LEAST_WORK_MEM_KB = 64 * 1024
"""Minimum of work_mem: with the server's default of 4 MB a join of 100,000 keys drops them as it goes, and reads each
again for every row."""


class RunMode(enum.StrEnum):
    """The rows that a run reads unless it is full."""

    FULL = "full"
    """All rows, each time."""
    INCREMENTAL = "incremental"
    """Rows beyond the checkpoint, and rows that may have come late."""


class WriteMode(enum.StrEnum):
    """The effect of a row at the target."""

    APPEND = "append"
    """Append."""
    MERGE = "merge"
    """Upsert: replaces the row with the same key."""
    REPLACE = "replace"
    """Replaces all other rows at once when the run is whole. An interrupted run starts over: rows read under two
    snapshots would be a mixture."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``schema`` and ``table`` are the target's. ``key`` are columns that identify the query's rows.
    ``incremental_key`` is "" in full mode; rows are ordered by it and then by ``id_key``. ``overlap`` is text that the
    server can take as an interval or a number, "" where none was given. ``skips_nulls``: rows without a value there are
    left out; else the run is refused. ``batch_rows`` is how many rows a task reads at once, ``tasks`` how many run at
    the same time; each is 0 if not configured. ``source`` and ``sink`` are places of the administrator's, "" where the
    pipeline names none. ``schedule`` is None without one. ``steps`` make of the query's rows those of the target;
    ``max_dead_letters`` bounds the rows that they may fail on. ``deleted_column`` marks deleted rows by a value, of a
    boolean by true; "" for none. ``reconcile_every_s`` is how often the target is compared with the query, 0 for never."""

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
    batch_rows: int = 0
    tasks: int = 0
    retries: int = DEFAULT_RETRIES
    statement_timeout_s: float = 0.0
    search_path: str = "public"
    work_mem_kb: int = LEAST_WORK_MEM_KB
    deleted_column: str = ""
    reconcile_every_s: float = 0.0
    source: str = ""
    sink: str = ""
    schedule: RunSchedule | None = None
    steps: tuple[Step, ...] = ()
    max_dead_letters: int = DEFAULT_MAX_DEAD_LETTERS

    @property
    def deleted_by(self) -> tuple[str, ...]:
        """The column that marks deleted rows, () for none."""
        return (self.deleted_column,) if self.deleted_column else ()

    @property
    def cursor(self) -> tuple[str, ...]:
        """The columns that rows are ordered by. They identify the rows."""
        if not self.incremental_key:
            return self.key
        others = (column for column in self.id_key or self.key if column != self.incremental_key)
        return (self.incremental_key, *others)

    @property
    def border_rows(self) -> int:
        """A batch can end after any multiple of this number of rows."""
        return self.batch_rows or SMALLEST_BATCH_ROWS

    def borders_per_batch(self, borders: int) -> int:
        """Returns the number of borders per batch."""
        if self.batch_rows:
            return 1
        return max(1, borders if self.tasks == 1 else borders // (self.tasks * BATCHES_PER_TASK))

    def with_tasks(self, spark: Mapping[str, str]) -> Pipeline:
        """Returns the pipeline with a number of tasks, if it has none. A task keeps a core busy here and a server's
        process another, which may be on the same machine if Spark is local. Rows for SQL steps are read here, since
        tasks cannot plan it."""
        if has_sql(self.steps):
            return replace(self, tasks=1)
        cores = local_tasks(spark.get("spark.master", DEFAULT_MASTER))
        tasks = MOST_DEFAULT_TASKS if cores is None else max(1, min(MOST_DEFAULT_TASKS, cores // 2))
        return replace(self, tasks=self.tasks or tasks)

    def with_work_mem(self, server_kb: int) -> Pipeline:
        """``server_kb`` is what the source gives the role for each sort and join."""
        return replace(self, work_mem_kb=max(LEAST_WORK_MEM_KB, server_kb))

    @property
    def oid(self) -> int:
        """Replaces the oid of a source's table for the target's table."""
        return zlib.crc32(f"{self.schema}.{self.table}".encode()) or 1

    @property
    def session(self) -> tuple[tuple[str, str], ...]:
        """Settings of every session that reads the query."""
        timeout_ms = round(self.statement_timeout_s * 1000)
        return (
            ("search_path", self.search_path),
            ("statement_timeout", str(timeout_ms)),
            ("jit", "off"),
            ("work_mem", f"{self.work_mem_kb}kB"),
        )

    def fingerprint(self, table: Table, origin: str) -> str:
        """Returns the fingerprint of everything that must stay unchanged for a checkpoint to be valid. ``origin`` names
        the server and its database."""
        columns = [[column.name, column.type_name] for column in table.columns]
        said: list[object] = [
            self.query,
            self.schema,
            self.table,
            self.key,
            self.cursor,
            self.write,
            self.search_path,
            columns,
            origin,
        ]
        said += self.deleted_by
        if self.steps:
            said.append([step.said for step in self.steps])
        return hashlib.sha256(orjson.dumps(said)).hexdigest()
