"""What the live screen shows of a group, and what it leaves out where there is no room."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console
from rich.screen import Screen

from pgsluice.console.watch.look import Look
from pgsluice.console.watch.screen import status_screen
from pgsluice.console.worker_status import PublisherStatus
from pgsluice.shared.alerts.conditions import AlertName, Condition
from pgsluice.shared.broker.halt import Halt
from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.broker.replicator_records import ReplicatorRecord
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.errors import Cause
from pgsluice.shared.units.unit_states import State, UnitState
from tests.console.watch.statuses import AT, group, look, table, worker

WAITS = UnitState("worker.lake", State.FAILING, AT, "no answer", cause=Cause.TARGET, next_attempt_at="2026-01-31T12:00:30+00:00")


def drawn(newest: Look | None, earlier: Look | None = None, problem: str = "", width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, legacy_windows=False)
    lines = console.render_lines(Screen(status_screen(earlier, newest, problem)), console.options)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def now(**changed: object) -> Look:
    return Look(group(**changed), time.monotonic())


def test_before_the_first_look_there_is_only_what_is_waited_for() -> None:
    assert drawn(None)[0] == "looking …"
    assert drawn(None, problem="NATS does not answer")[0] == "NATS does not answer"


def test_a_worker_is_shown_with_its_lag_and_its_letters() -> None:
    lines = drawn(now(workers=[worker("lake", lag_messages=123_456, lag_bytes=12 << 30, lag_s=4711.25, dead_letters=12)]))
    assert any(re.fullmatch(r"lake +running +123,456 +12\.0 GiB +4,711\.2 +- +12", line) for line in lines)


def test_a_lag_that_is_not_known_is_no_number() -> None:
    lines = drawn(now(workers=[worker("lake", lag_messages=None, lag_bytes=None, lag_s=None)]))
    assert any(re.fullmatch(r"lake +running +- +- +- +-", line) for line in lines)


def test_a_worker_that_publishes_the_group_stands_where_a_replicator_would() -> None:
    waits = UnitState("worker.nats", State.FAILING, AT, "stream x is full", cause=Cause.STREAM_FULL)
    lines = drawn(now(publisher=PublisherStatus("shop", "nats", waits, 17, 4.5)), width=100)
    assert any(re.fullmatch(r"shop/nats +failing +17 +4\.5 +-", line) for line in lines)
    assert any(line.startswith("group shop: nats failing (stream_full)") for line in lines)
    assert not any(line.startswith("replicator") for line in lines)


def test_rates_are_those_between_two_looks() -> None:
    before = look(10.0)
    after = Look(
        group(
            replicator=ReplicatorRecord("0/1", "", 1, changes=6000, body_bytes=3 << 20, started_at=AT),
            workers=[worker("postgres", changes=5000)],
        ),
        12.0,
    )
    lines = drawn(after, before)
    assert "published  500 changes/s, 1.0 MiB/s" in lines
    assert any(re.fullmatch(r"postgres .* 2,000", line) for line in lines)


def test_a_process_that_was_started_between_two_looks_has_no_rate() -> None:
    after = Look(group(workers=[worker("postgres", changes=5, started_at="2026-02-01T12:00:00+00:00")]), 2.0)
    assert any(re.fullmatch(r"postgres .* -", line) for line in drawn(after, look(0.0)))


def test_what_is_wrong_stands_before_the_units() -> None:
    lines = drawn(
        now(
            halt=Halt("the stream lost messages", "drop the group", AT),
            tables=[table("public.bad", Phase.ERRORED, error="permission denied", remedy="GRANT SELECT")],
            workers=[worker("lake"), worker("old", holds_lease=False, holds_back=7)],
            units=[WAITS],
            shortages=[Condition(AlertName.SLOT_AT_RISK, "s", "slot s may be lost", "raise max_slot_wal_keep_size")],
        )
    )
    units = next(number for number, line in enumerate(lines) if line.startswith("unit "))
    assert lines[units - 5 : units] == [
        "HALTED: the stream lost messages: drop the group",
        "slot s may be lost: raise max_slot_wal_keep_size",
        "public.bad is not copied: permission denied: GRANT SELECT",
        "lake failing (target) since 12:00:00, next attempt 12:00:30: no answer",
        "old does not run and holds back 7 messages",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (50, 14), (40, 10)])
def test_a_picture_fits_any_window_and_counts_what_it_leaves_out(width: int, height: int) -> None:
    tables = [table(f"public.t{n:03}_with_a_very_long_name_indeed", Phase.READY) for n in range(100)]
    units = [replace(WAITS, fact="the target does not answer " * 10)]
    lines = drawn(now(tables=tables, workers=[worker("postgres"), worker("lake")], units=units), width=width, height=height)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    assert sum(line.startswith("lake ") and " failing" in line for line in lines) == 2
    if height >= 24:
        assert re.fullmatch(r"… and \d+ more tables", lines[-1])
        assert len({line for line in lines if line.startswith("public.")}) > 5


def test_tables_in_trouble_are_shown_first() -> None:
    ready = [table(f"public.t{n:03}", Phase.READY) for n in range(100)]
    lines = drawn(now(tables=[*ready, table("public.zebra", Phase.ERRORED), table("public.yak", Phase.DATA_SYNC)]))
    heading = next(number for number, line in enumerate(lines) if line.startswith("tables "))
    assert lines[heading].endswith("1 errored · 1 data_sync · 100 ready")
    assert [line.split()[0] for line in lines[heading + 1 : heading + 4]] == ["public.zebra", "public.yak", "public.t000"]


def test_many_troubles_leave_room_for_the_units() -> None:
    tables = [table(f"public.t{n:03}", Phase.ERRORED, error="permission denied") for n in range(100)]
    lines = drawn(now(tables=tables))
    assert any(line.startswith("… and 95 more; see") for line in lines)
    assert any(line.startswith("postgres ") for line in lines)


def test_a_look_that_is_old_says_so_and_a_stream_that_is_nearly_full_its_share() -> None:
    lines = drawn(Look(group(stream=StreamState("c", 1, 9, 9, 9 << 30, 10 << 30)), time.monotonic() - 75), problem="NATS is gone")
    assert lines[0].endswith("as of 75 s ago")
    assert "stream     9.0 GiB of 10.0 GiB, 90% full, 9 messages" in lines
    assert "NATS is gone" in lines


def test_a_name_from_the_database_is_no_markup() -> None:
    lines = drawn(now(tables=[table("public.[red]t", Phase.READY)], units=[replace(WAITS, fact="[bold]x")]))
    assert any(line.endswith(": [bold]x") for line in lines)
    assert any(line.startswith("public.[red]t") for line in lines)
