"""Whatever a time column holds, after the last run each row is read that ``docs/how-to/sql-pipelines.md`` promises."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from pgsluice.replicator.pipelines import late_rows
from pgsluice.replicator.pipelines.pipeline import WriteMode
from tests.replicator.pipelines.pipeline_under_test import PipelineUnderTest, new_pipeline
from tests.servers import NatsServer, PostgresServer
from tests.waiting import wait_until

WRITERS = 3
ROWS_OF_EACH = 4
ACTIONS = ("begin", "insert", "insert", "update", "commit", "rollback", "run", "run --full")
UNIT = timedelta(milliseconds=100)
"""What truncation takes off at most, and the slack of these tests: of the product's own no run would come to the end."""
MEASURED, LOCAL = "timestamptz", "timestamp"

unhurried = settings(deadline=None, phases=(Phase.explicit, Phase.generate))  # each example is some runs on real servers


class Clock(enum.Enum):
    """Whose time a row has. An application's that is ahead for one row and behind for the next is one that was set back. The
    server's, set back, is one that is behind from there on."""

    TRANSACTION = "now()"
    STATEMENT = "statement_timestamp()"
    TRUNCATED = "date_bin(%(unit)s, now(), '2000-01-01')"
    ROUNDED = "date_bin(%(unit)s, now() + %(unit)s / 2, '2000-01-01')"
    AHEAD = "clock_timestamp() + %(overlap)s"
    BEHIND = "clock_timestamp() - %(overlap)s"
    LONG_AGO = "now() - interval '1 hour'"
    OF_THE_LAST_ROW = "coalesce((SELECT max(updated_at) FROM t), now())"
    NONE = "NULL"


Step = tuple[int, int, str, Clock]
"""A writer, one of its rows, what it does, and by which clock."""
Value = tuple[datetime, int]
"""The time that a row has, and its id."""

steps = st.tuples(st.integers(0, WRITERS - 1), st.integers(0, ROWS_OF_EACH - 1), st.sampled_from(ACTIONS), st.sampled_from(Clock))
schedules = st.lists(steps, min_size=10, max_size=40)


@dataclass(frozen=True, slots=True)
class Case:
    """``overlap_ms`` is None where the pipeline names none."""

    column: str
    write: WriteMode
    overlap_ms: int | None

    @property
    def overlap(self) -> timedelta:
        return timedelta(milliseconds=self.overlap_ms or 0)

    @property
    def written_overlap(self) -> str:
        """As people write it."""
        return "" if self.overlap_ms is None else f"{self.overlap_ms} ms" if self.overlap_ms else late_rows.NONE_LATE


MEASURED_ALONE = Case(MEASURED, WriteMode.MERGE, None)
BESIDE_MEASURED = Case(MEASURED, WriteMode.MERGE, 3000)
APPENDED = Case(MEASURED, WriteMode.APPEND, 800)
BEHIND_THE_LAST = Case(LOCAL, WriteMode.MERGE, 3000)
CASES = [
    MEASURED_ALONE,
    BESIDE_MEASURED,
    Case(MEASURED, WriteMode.APPEND, None),
    APPENDED,
    BEHIND_THE_LAST,
    Case(LOCAL, WriteMode.MERGE, 0),
    Case(LOCAL, WriteMode.APPEND, 0),
]


@dataclass(slots=True)
class Written:
    """What a row holds since its last write. ``is_in_time``: its time is that of its transaction's begin or later, but for slack
    and overlap."""

    text: str
    value: Value | None
    is_in_time: bool


class Writers:
    """Transactions that open, write rows of their own, and end as a schedule says. What cannot be done at its moment is not done.

    ``promised`` is the text of each row that some run has to read, by id: of a measured column those that are in time; of another
    one those that were above all that was read when they were committed, or within the overlap. ``committed`` are all texts that
    were."""

    def __init__(self, pipeline: PipelineUnderTest, case: Case) -> None:
        self._pipeline = pipeline
        self._case = case
        self._closing = ExitStack()
        self._connections = [self._closing.enter_context(pipeline.source.connect()) for _ in range(WRITERS)]
        self._uncommitted: list[dict[int, Written]] = [{} for _ in range(WRITERS)]
        self._texts = itertools.count()
        self._highest_read: Value | None = None
        self.promised: dict[int, str] = {}
        self.committed: set[str] = set()

    def __enter__(self) -> Writers:
        for connection in self._connections:
            connection.execute("SET timezone = 'UTC'")
        return self

    def __exit__(self, *_: object) -> None:
        """All transactions end."""
        for writer in range(WRITERS):
            self._end(writer, "COMMIT")
        self._closing.close()

    def take(self, step: Step) -> None:
        writer, row, action, clock = step
        match action:
            case "begin" if not _is_open(self._connections[writer]):
                self._connections[writer].execute("BEGIN")
            case "commit" | "rollback":
                self._end(writer, action)
            case "insert" | "update":
                self._write(writer, WRITERS * row + writer, action, clock)
            case "run":
                self.run()
            case "run --full" if self._case.write is WriteMode.MERGE:
                self.run(full=True)

    def run(self, *, full: bool = False) -> None:
        highest = "SELECT updated_at, id FROM t WHERE updated_at IS NOT NULL ORDER BY 1 DESC, 2 DESC LIMIT 1"
        for value in self._pipeline.source.execute(highest):
            self._highest_read = max(self._highest_read or value, value)
        self._pipeline.run(full=full)

    def _end(self, writer: int, how: LiteralString) -> None:
        connection = self._connections[writer]
        if not _is_open(connection):
            return
        connection.execute(how)
        if how == "rollback":
            self._uncommitted[writer] = {}
        self._note_committed(writer)

    def _write(self, writer: int, row: int, action: str, clock: Clock) -> None:
        """An insert of a row that is there does nothing, nor does an update of one that is not."""
        connection, text = self._connections[writer], f"v{next(self._texts)}"
        statement: dict[str, LiteralString] = {
            "insert": f"INSERT INTO t VALUES (%(row)s, %(text)s, {clock.value}) ON CONFLICT DO NOTHING",
            "update": f"UPDATE t SET v = %(text)s, updated_at = {clock.value} WHERE id = %(row)s",
        }
        returned: LiteralString = " RETURNING updated_at, updated_at >= now() - %(unit)s - %(overlap)s"
        values = {"row": row, "text": text, "unit": UNIT, "overlap": self._case.overlap}
        for time, is_in_time in connection.execute(statement[action] + returned, values):
            self._uncommitted[writer][row] = Written(text, None if time is None else (time, row), bool(is_in_time))
        if not _is_open(connection):
            self._note_committed(writer)

    def _note_committed(self, writer: int) -> None:
        for row, written in self._uncommitted[writer].items():
            self.committed.add(written.text)
            self.promised.pop(row, None)
            if self._will_be_read(written):
                self.promised[row] = written.text
        self._uncommitted[writer] = {}

    def _will_be_read(self, written: Written) -> bool:
        if written.value is None or self._case.column == MEASURED:
            return written.is_in_time
        if self._highest_read is None:
            return True
        if self._case.overlap:
            return written.value[0] >= self._highest_read[0] - self._case.overlap
        return written.value > self._highest_read


def _is_open(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    return connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE


def missed_in(
    server: PostgresServer,
    nats: NatsServer,
    case: Case,
    schedule: Sequence[Step],
    *,
    slack: timedelta = UNIT,
    overlap: str | None = None,
) -> dict[int, str]:
    """Promised rows that no run has read, after the schedule and a last run when all writers are through. An ``overlap`` is the
    pipeline's in place of the case's."""
    with new_pipeline(server, nats) as pipeline, pytest.MonkeyPatch.context() as patched:
        patched.setattr(late_rows, "SLACK", f"{slack.total_seconds()} s")
        pipeline.source.execute(f"ALTER TABLE t ALTER updated_at TYPE {case.column}")
        pipeline.change(write=case.write, skips_nulls=True, overlap=case.written_overlap if overlap is None else overlap)
        with Writers(pipeline, case) as writers:
            for step in schedule:
                writers.take(step)
        if case.column == MEASURED and case.write is WriteMode.APPEND:  # it leaves out what may come late, until nothing may
            wait_until_passed(pipeline, case)
        writers.run()
        return missed(pipeline, case, writers)


def wait_until_passed(pipeline: PipelineUnderTest, case: Case) -> None:
    """Until the border of a run is above all times."""
    above = "SELECT coalesce(max(updated_at) < clock_timestamp() - %s - %s, true) FROM t"
    is_passed = lambda: pipeline.source.execute(above, [UNIT, case.overlap]) == [(True,)]  # noqa: E731
    wait_until(is_passed, what="times that lie behind")


def missed(pipeline: PipelineUnderTest, case: Case, writers: Writers) -> dict[int, str]:
    lines = [line.decode().split("\t") for line in pipeline.lines()]
    texts = Counter(text for _, text, _ in lines)
    assert texts.keys() <= writers.committed
    assert all(time != r"\N" for _, _, time in lines)
    if case.write is WriteMode.APPEND:
        assert max(texts.values(), default=1) == 1, "a row came twice"
    newest = {int(row): text for row, text, _ in lines}
    return {row: text for row, text in writers.promised.items() if newest.get(row) != text}


BEHIND_A_RUN: list[Step] = [(0, 0, "insert", Clock.TRANSACTION), (0, 0, "run", Clock.NONE), (1, 0, "insert", Clock.BEHIND)]
TRUNCATED_AND_LATE: list[Step] = [
    (0, 0, "begin", Clock.NONE),
    (0, 0, "insert", Clock.TRUNCATED),
    (1, 0, "insert", Clock.TRANSACTION),
    (1, 0, "run", Clock.NONE),
]
SET_LATE: list[Step] = [
    (0, 0, "insert", Clock.NONE),
    (0, 1, "insert", Clock.TRANSACTION),
    (0, 0, "run", Clock.NONE),
    (0, 0, "update", Clock.BEHIND),
]


@settings(unhurried, max_examples=settings().max_examples // 6)
@given(case=st.sampled_from(CASES), schedule=schedules)
@example(MEASURED_ALONE, TRUNCATED_AND_LATE)
@example(BESIDE_MEASURED, BEHIND_A_RUN)
@example(BEHIND_THE_LAST, SET_LATE)
def test_each_row_is_read_whose_time_is_late_as_far_as_it_may_be(
    postgres: PostgresServer, nats_server: NatsServer, case: Case, schedule: list[Step]
) -> None:
    assert not missed_in(postgres, nats_server, case, schedule)


@pytest.mark.parametrize(
    ("case", "schedule", "fault"),
    [
        (MEASURED_ALONE, TRUNCATED_AND_LATE, {"slack": timedelta()}),
        (BESIDE_MEASURED, BEHIND_A_RUN, {"overlap": ""}),
        pytest.param(APPENDED, BEHIND_A_RUN, {"overlap": ""}, marks=pytest.mark.long),
        (BEHIND_THE_LAST, SET_LATE, {"overlap": late_rows.NONE_LATE}),
    ],
    ids=["no slack", "no overlap", "no overlap, appending", "no overlap of local time"],
)
def test_without_what_makes_up_for_a_clock_its_rows_are_missed(
    postgres: PostgresServer, nats_server: NatsServer, case: Case, schedule: list[Step], fault: dict[str, Any]
) -> None:
    """So the test above can see the fault."""
    assert missed_in(postgres, nats_server, case, schedule, **fault)
