"""Orders to hold single tables back: which tables, by which workers, and when they have obeyed."""

from __future__ import annotations

import pytest

from pgsluice.console.program import run as run_program
from pgsluice.console.units.table_pauses import TablePause, check_sinks, chosen_paused, chosen_tables, has_obeyed
from pgsluice.shared.broker.worker_records import WorkerReport
from pgsluice.shared.errors import UsageError
from pgsluice.shared.units.paused_tables import PausedTable, PausedTables
from pgsluice.testing.changes_builder import table

PUBLISHED = [table("orders", "id bigint"), table("items", "id bigint")]
PAUSE = TablePause(("orders",), is_wanted=True)
RESUME = TablePause(("orders",), is_wanted=False)


def test_tables_are_chosen_by_name_and_pattern_and_known_by_oid() -> None:
    assert [each.oid for each in chosen_tables(PAUSE, PUBLISHED, "me")] == [PUBLISHED[0].oid]
    every = chosen_tables(TablePause(("public.*", "orders"), is_wanted=True), PUBLISHED, "me")
    assert {each.qualified_name for each in every} == {each.qualified_name for each in PUBLISHED}
    with pytest.raises(UsageError, match="'order'"):
        chosen_tables(TablePause(("order",), is_wanted=True), PUBLISHED, "me")
    with pytest.raises(UsageError, match="is not a table"):
        chosen_tables(TablePause(("a.b.c",), is_wanted=True), PUBLISHED, "me")


def test_only_what_is_paused_is_resumed_also_when_it_is_published_no_more() -> None:
    paused = PausedTables((PausedTable(7, "public", "orders"), PausedTable(8, "old", "gone")))
    assert [each.oid for each in chosen_paused(RESUME, paused)] == [7]
    assert [each.oid for each in chosen_paused(TablePause(("*",), is_wanted=False), paused)] == [7, 8]


def test_a_sink_with_one_place_refuses_with_a_sentence() -> None:
    check_sinks({"two": WorkerReport(0, two_lanes=True)})
    with pytest.raises(UsageError, match=r"'one' keeps one place .*'pgsluice pause --worker one'"):
        check_sinks({"one": WorkerReport(0), "two": WorkerReport(0, two_lanes=True)})


def test_a_worker_has_obeyed_when_it_holds_the_table_back_or_has_caught_up() -> None:
    oids = frozenset({7})
    assert not has_obeyed(WorkerReport(0), oids, PAUSE)
    assert has_obeyed(WorkerReport(0, paused_tables=(7, 8)), oids, PAUSE)
    assert not has_obeyed(WorkerReport(0, paused_tables=(7,)), oids, RESUME)
    assert not has_obeyed(WorkerReport(0, catching_up=(7,)), oids, RESUME)
    assert has_obeyed(WorkerReport(0, catching_up=(8,)), oids, RESUME)


def test_a_table_is_paused_for_all_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["pause", "--group", "g", "--nats-url", "nats://x", "--table", "orders", "--worker", "w"]) == 2
    assert "give it alone" in capsys.readouterr().err
