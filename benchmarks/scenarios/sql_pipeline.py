"""The rows of a join into a table: how fast does a run of a SQL pipeline bring them there, beside what a shell does?

COPY to COPY    ``psql -c "COPY (query) TO STDOUT" | psql -c "COPY table FROM STDIN"`` into a table with a primary key: one
                statement on each side, and nothing in between that would know where it ended.
full run        ``pgsluice run --wait`` from the start of its process to its end: every row is applied. With one task, which is
                the default on two cores, it needs no Spark of its own. The worker has applied a small run before and is warm.
SQL step        the same through a step in SQL that changes nothing: rows go through Arrow and Spark's code.
two tasks       the same with ``tasks: 2``, in Spark, which it starts.
no new rows     the same command when nothing is new: ``seconds`` is the whole process, the fastest of three.
dlt             dlt's ``sql_table`` over a view of the same query, merged by the same key with the same cursor: from the start of
                its process, first all rows, then none. Measured when DLT_PYTHON names a Python that has it:
                ``pip install "dlt[postgres]" sqlalchemy psycopg2-binary pyarrow``.

Ratios are to COPY to COPY in the same repetition; ``times_dlt`` says how much faster than dlt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data
from benchmarks.group import Group, finish, stop
from benchmarks.measurement import Options, Run, Scenario, at_least, at_most
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch
from benchmarks.servers import Servers, start_servers
from tests.servers import Database
from tests.servers.postgres_binaries import NEWEST, binaries

NAME = "sql_pipeline"
ROWS = 5_000_000
ROWS_PER_FILM = 50
WARM_UP_ROWS = 40_000
INSERTED_ROWS = 500_000
"""In one transaction."""

COPY_TO_COPY, FULL, SQL_STEP, TWO_TASKS, NO_NEW_ROWS, DLT, DLT_NO_NEW_ROWS = (
    "COPY to COPY",
    "full run",
    "SQL step",
    "two tasks",
    "no new rows",
    "dlt",
    "dlt, no new rows",
)
TABLE = "film_ratings"
QUERY = "SELECT r.id, r.film_id, f.title, r.stars, r.note, r.updated_at FROM rating r JOIN film f ON f.id = r.film_id"

_SOURCE = """
    CREATE TABLE film (id int PRIMARY KEY, title text NOT NULL);
    CREATE TABLE rating (
        id bigint PRIMARY KEY, film_id int NOT NULL, stars int NOT NULL, note text, updated_at timestamptz NOT NULL
    );
    CREATE INDEX ON rating (updated_at, id)
"""
_FILMS = "INSERT INTO film SELECT n, 'The film number ' || n FROM generate_series(0, {}) n"
_RATINGS = """
    INSERT INTO rating
    SELECT n, abs(n) * 7919 % {films}, n % 5 + 1, md5(n::text), timestamptz '2026-01-01 00:00:00Z' + n / 100 * interval '1 second'
      FROM generate_series({first}::bigint, {last}::bigint) n
"""
_TARGET = f"""
    CREATE TABLE {TABLE} (id bigint PRIMARY KEY, film_id int, title text, stars int, note text, updated_at timestamptz)
"""
_PIPELINES = f"""
pipelines:
  {TABLE}:
    group: GROUP
    query: {QUERY}
    target: public.{TABLE}
    key: [id]
    mode: incremental
    incremental-key: updated_at
"""
_MORE = {
    TWO_TASKS: "    tasks: 2\n",
    SQL_STEP: '    steps: [{sql: "SELECT id, film_id, trim(title) title, stars, note, updated_at FROM rows WHERE stars > 0"}]\n',
}
"""Of these contestants' pipelines."""


def measure(options: Options) -> Iterator[Run]:
    rows = options.rows or ROWS
    with start_servers() as servers, tempfile.TemporaryDirectory(prefix="pgsluice-benchmark-") as folder:
        source = servers.source.create_database("source")
        source.execute(_SOURCE)
        source.execute(_FILMS.format(rows // ROWS_PER_FILM))
        for repetition in options.repetitions:
            source.execute("TRUNCATE rating")
            yield from _Repetition(servers, source, repetition, rows, Path(folder)).runs()


@dataclass(frozen=True, slots=True)
class _Repetition:
    servers: Servers
    source: Database
    number: int
    rows: int
    folder: Path

    def runs(self) -> Iterator[Run]:
        dlt: list[Run] = []
        with ExitStack() as running:
            groups = {contestant: self._group(contestant) for contestant in (FULL, SQL_STEP, TWO_TASKS)}
            workers = {contestant: running.enter_context(group.worker()) for contestant, group in groups.items()}
            self._warm_up(list(groups.values()))
            native = self._copy_to_copy()
            yield native
            dlt += self._dlt()
            for contestant, group in groups.items():
                full = self._full(contestant, group, workers[contestant].pid)
                full.figures["ratio"] = full.figures["rows_per_s"] / native.figures["rows_per_s"]
                if dlt:
                    full.figures["times_dlt"] = full.figures["rows_per_s"] / dlt[0].figures["rows_per_s"]
                yield full
            yield self._no_new_rows(groups[FULL], dlt)
            stop(*workers.values())
        yield from dlt
        for group in groups.values():
            group.drop()

    def _warm_up(self, groups: list[Group]) -> None:
        """Runs whose rows are removed on both sides again, and then all rows at the source."""
        self._insert(-WARM_UP_ROWS, -1)
        for group in groups:
            self._run_pipeline(group, "--full")
            group.target.execute(f"TRUNCATE {TABLE}")
        self.source.execute("DELETE FROM rating")
        for first in range(0, self.rows, INSERTED_ROWS):
            self._insert(first, min(first + INSERTED_ROWS, self.rows) - 1)
        self.source.execute("VACUUM ANALYZE")

    def _copy_to_copy(self) -> Run:
        target = self._new_target("copied")
        out = self._psql(self.servers.source.dsn(self.source.dbname), f"COPY ({QUERY}) TO STDOUT")
        into = self._psql(self.servers.target.dsn(target.dbname), f"COPY {TABLE} FROM STDIN")
        self.servers.settle()
        with ProcessWatch(self.servers.roots()) as watch:
            began = time.monotonic()
            with subprocess.Popen(out, stdout=subprocess.PIPE) as reading:
                subprocess.run(into, stdin=reading.stdout, check=True, stdout=subprocess.DEVNULL)
            elapsed_s = time.monotonic() - began
        self._require_equal(target)
        target.drop()
        return self._run(COPY_TO_COPY, elapsed_s, watch)

    def _psql(self, dsn: str, statement: str) -> list[str]:
        return [str(binaries(NEWEST) / "psql"), "--no-psqlrc", "-d", dsn, "-c", statement]

    def _full(self, contestant: str, group: Group, worker: int) -> Run:
        self.servers.settle()
        with ProcessWatch(self.servers.roots() | {WORKER: worker}) as watch:
            elapsed_s = self._run_pipeline(group, "--full", watch=watch)
        self._require_equal(group.target)
        return self._run(contestant, elapsed_s, watch)

    def _no_new_rows(self, group: Group, dlt: list[Run]) -> Run:
        elapsed_s = min(self._run_pipeline(group) for _ in range(3))
        figures = {"seconds": elapsed_s}
        if dlt:
            figures["times_dlt"] = dlt[1].figures["seconds"] / elapsed_s
        return Run(NAME, NO_NEW_ROWS, self.number, figures, 0)

    def _run_pipeline(self, group: Group, *flags: str, watch: ProcessWatch | None = None) -> float:
        """The seconds of the process."""
        began = time.monotonic()
        with group.command("run", TABLE, "--wait", *flags) as process:
            if watch is not None:
                watch.add(REPLICATOR, process.pid)
            finish(process)
        return time.monotonic() - began

    def _dlt(self) -> Iterator[Run]:
        """Nothing when there is none."""
        python = os.environ.get("DLT_PYTHON")
        if not python:
            return
        target = self._new_target("dlt")
        self.source.execute(f"CREATE OR REPLACE VIEW {TABLE} AS {QUERY}")
        script = Path(__file__).parent.parent / "rivals" / "dlt_pipeline.py"
        environment = {
            "PATH": os.environ["PATH"],
            "DLT_DATA_DIR": str(self.folder / f"dlt-{self.number}"),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            "SOURCE": "postgresql+psycopg2" + self._url(self.servers.source.dsn(self.source.dbname)),
            "TARGET": "postgresql" + self._url(self.servers.target.dsn(target.dbname)),
        }
        self.servers.settle()
        with ProcessWatch(self.servers.roots()) as watch:
            elapsed_s = self._process([python, str(script)], environment)
        yield self._run(DLT, elapsed_s, watch)
        elapsed_s = min(self._process([python, str(script)], environment) for _ in range(2))
        yield Run(NAME, DLT_NO_NEW_ROWS, self.number, {"seconds": elapsed_s}, 0)
        [(rows,)] = target.execute(f"SELECT count(*) FROM dlt.{TABLE}")
        if rows != self.rows:
            raise data.DifferenceError(f"dlt left {rows:,} rows of {self.rows:,}")
        target.drop()

    def _url(self, dsn: str) -> str:
        parts = dict(part.split("=", 1) for part in dsn.split())
        return f"://{parts['user']}:unused@{parts['host']}:{parts['port']}/{parts['dbname']}"

    def _process(self, command: list[str], environment: dict[str, str]) -> float:
        began = time.monotonic()
        subprocess.run(command, env=environment, cwd=self.folder, check=True, stdout=sys.stderr)
        return time.monotonic() - began

    def _insert(self, first: int, last: int) -> None:
        self.source.execute(_RATINGS.format(films=self.rows // ROWS_PER_FILM, first=first, last=last))

    def _new_target(self, name: str) -> Database:
        target = self.servers.target.create_database(f"{name}_{self.number}")
        target.execute(_TARGET)
        return target

    def _group(self, contestant: str) -> Group:
        name = f"{contestant.lower().replace(' ', '-')}-{self.number}"
        file = self.folder / f"{name}.yaml"
        file.write_text(_PIPELINES.replace("GROUP", name) + _MORE.get(contestant, ""))
        target = self._new_target(contestant.lower().replace(" ", "_"))
        return Group(name, self.servers, self.source, target, **{"pipelines-config": str(file)})

    def _require_equal(self, target: Database) -> None:
        query = "SELECT count(*), sum(hashtext(q::text)::bigint) FROM ({}) q"
        there, here = self.source.execute(query.format(QUERY)), target.execute(query.format(f"SELECT * FROM {TABLE}"))
        if there != here:
            raise data.DifferenceError(f"the query gives {there[0][0]:,} rows, table {TABLE} has {here[0][0]:,}, or others")

    def _run(self, contestant: str, elapsed_s: float, watch: ProcessWatch) -> Run:
        return Run(NAME, contestant, self.number, {"rows_per_s": self.rows / elapsed_s}, self.rows, watch.usage())


SCENARIO = Scenario(
    name=NAME,
    title="the rows of a join, read by a SQL pipeline into a table",
    goals=(
        at_least(FULL, "ratio", 0.5),
        at_most(NO_NEW_ROWS, "seconds", 1.0),
        at_least(FULL, "times_dlt", 3),
        at_least(NO_NEW_ROWS, "times_dlt", 3),
    ),
    plotted=("rows_per_s",),
    measure=measure,
)
