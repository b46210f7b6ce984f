"""Tables are added, removed, copied again and forgotten by command while the group streams, and nothing of a row goes missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgsluice.shared.broker.ledger import CopyState, Ledger, LedgerContent, Phase, Retry, TableRecord
from pgsluice.shared.broker.table_selection import load_selection
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.wire.position import parse_lsn
from tests.replicator.snapshot.table_gate import TableGate
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import COPY_DEADLINE_S, StreamingGroup, newest_of
from tests.waiting import wait_until

CONFIGURED = ("t", "again", "returns", "removed", "behind_1", "behind_2")
PAUSE_S = 0.05
"""Between two rows that somebody writes: a load, and not one that keeps the machine busy."""


@contextmanager
def writing(group: StreamingGroup, table: str) -> Iterator[None]:
    """Somebody inserts, updates and deletes rows of ``table`` all the time."""
    stopped = threading.Event()

    def write() -> None:
        with group.source.connect() as application:
            number = 100_000
            while not stopped.wait(PAUSE_S):
                number += 1
                application.execute(f"INSERT INTO {table} VALUES ({number}, 'meanwhile')".encode())
                application.execute(f"UPDATE {table} SET v = 'updated {number}' WHERE id = {number - 100_000}".encode())
                application.execute(f"DELETE FROM {table} WHERE id = {number - 20}".encode())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopped.set()
        writer.join()


@pytest.fixture(scope="module")
def streaming(make_shared_group: MakeGroup) -> Iterator[StreamingGroup]:
    """Whoever stops it starts it again."""
    group = make_shared_group(tables=",".join(CONFIGURED))
    for table in CONFIGURED[1:]:
        group.create(table, 3)
    with group.running():
        for table in CONFIGURED:
            group.wait_for_copy(table)
        yield group


@dataclass(frozen=True)
class Ordered:
    """What commands said. ``before`` is of ``again``, ``after`` is what the ledger held when everything was copied."""

    removed: str
    recopied: str
    added: str
    before: TableRecord
    after: LedgerContent

    def record(self, table: str) -> TableRecord:
        record = newest_of(self.after, table)
        assert record is not None
        return record


@pytest.fixture(scope="module")
def ordered(streaming: StreamingGroup) -> Ordered:
    """While they are written to, ``joins`` is added and ``t`` streams on; meanwhile ``again`` is copied again, ``returns`` comes
    back, and ``p`` is added, which cannot be copied. ``removed`` was removed."""
    group, before = streaming, streaming.table("again")
    assert before is not None
    group.create("joins", 5_000)
    group.insert("again", 4, 20)
    group.source.execute("CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing")
    group.source.execute("CREATE TABLE p (id bigint, v text) PARTITION BY RANGE (id)")
    group.source.execute("CREATE TABLE p1 PARTITION OF p (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10)")
    group.source.execute("ALTER TABLE p REPLICA IDENTITY FULL; ALTER TABLE p1 REPLICA IDENTITY FULL")
    group.source.execute("CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) SERVER nowhere")
    group.insert("p", 1, 3)
    removed = group.ordered("remove", "public.removed", "returns")
    group.source.execute("INSERT INTO returns VALUES (4, 'missed')")
    with writing(group, "joins"), writing(group, "t"):
        with TableGate(group.source, "joins") as gate:
            gate.close()
            code, said = group.order("add", "--wait", "0", "joins")
            assert code in (0, 75), said
        (done, recopied), (not_done, added) = group.ordered_together(("recopy", "again"), ("add", "returns", "p"))
        assert (done, not_done) == (0, 70)
        group.wait_for_copy("joins")
    return Ordered(removed, recopied, added, before, wait_until(lambda: finished(group), what="the end of the copy"))


def finished(group: StreamingGroup) -> LedgerContent | None:
    """The ledger, once it says that everything is copied."""
    ledger = group.ledger()
    return ledger if ledger.snapshot is not None and ledger.snapshot.state is CopyState.FINISHED else None


def test_a_table_is_added_while_it_is_written_to_and_others_stream_on(streaming: StreamingGroup, ordered: Ordered) -> None:
    assert streaming.read("t", "joins") == streaming.at_source("t", "joins")
    assert {"t", "joins"} <= streaming.published()
    record, snapshot = ordered.record("joins"), ordered.after.snapshot
    assert record.last_sequence > 0
    assert parse_lsn(record.lsn) > 0
    assert snapshot is not None
    assert snapshot.last_sequence == max(each.last_sequence for each in ordered.after.tables.values())


def test_a_table_is_copied_again_into_another_attempt(streaming: StreamingGroup, ordered: Ordered) -> None:
    assert "public.again: 20 rows are copied" in ordered.recopied
    before, after = ordered.before, ordered.record("again")
    streaming.insert("again", 21, 30)
    assert streaming.read("again") == streaming.at_source("again")
    assert after.attempt == before.attempt + 1
    assert parse_lsn(after.lsn) > parse_lsn(before.lsn)
    assert after.last_sequence > before.last_sequence


def test_a_table_that_cannot_be_copied_is_errored_alone_and_copied_when_asked_again(
    streaming: StreamingGroup, ordered: Ordered
) -> None:
    group = streaming
    assert "could not be copied: public.p2, a partition of public.p, is a foreign table" in ordered.added
    listed = group.listed()["public.p"]
    assert (listed.phase, listed.retry, listed.retry_at) == ("errored", "manual", "")
    group.insert("t", 11, 12)
    assert group.read("t") == group.at_source("t")
    group.source.execute("ALTER TABLE p DETACH PARTITION p2")
    assert "public.p: 3 rows are copied" in group.ordered("retry", "p")
    group.insert("p", 4, 5)
    assert group.read("p") == group.at_source("p")


def test_what_was_added_and_removed_holds_over_a_restart_until_the_configuration_says_so(
    streaming: StreamingGroup, ordered: Ordered
) -> None:
    group = streaming
    assert "public.removed: is not replicated any more" in ordered.removed
    code, said = group.order("list", "--json")
    assert code == 0, said
    listed = {each["table"]: (each["phase"], each["origin"]) for each in json.loads(said[: said.rindex("}") + 1])["tables"]}
    assert {name: listed[f"public.{name}"] for name in ("t", "removed", "joins")} == {
        "t": ("finished_copy", "configuration"),
        "removed": ("left", "removed"),
        "joins": ("finished_copy", "added"),
    }
    group.restart()
    assert group.published() & {"t", "removed", "joins"} == {"t", "joins"}
    group.insert("joins", 200_000, 200_001)
    assert group.read("joins") == group.at_source("joins")
    group.write(tables=",".join(("joins", *(table for table in CONFIGURED if table != "removed"))))
    group.restart()
    [line] = [
        line
        for line in group.process.log().splitlines()
        if "the configuration now contains the tables that were added and removed by command" in line and "public.joins" in line
    ]
    assert "public.removed" in line
    assert group.published() & {"t", "removed", "joins"} == {"t", "joins"}
    selection = group.ask(load_selection)
    assert not {"public.joins", "public.removed"} & {*selection.added, *selection.removed}


def test_a_removed_table_returns_with_a_copy_and_a_forgotten_one_is_not_known_any_more(
    streaming: StreamingGroup, ordered: Ordered
) -> None:
    group = streaming
    assert "public.returns: 4 rows are copied" in ordered.added
    assert ordered.record("returns").attempt == 2
    assert group.read("returns") == group.at_source("returns")
    assert "public.returns: is forgotten" in group.ordered("forget", "--yes", "returns")
    assert "public.returns" not in group.listed()
    assert "returns" not in group.published()
    assert "returns" not in {entry.table for entry in group.membership().left}
    group.restart()
    assert "returns" not in group.published()


@pytest.mark.parametrize(
    ("table", "behind"),
    [
        pytest.param("behind_1", {"snapshot_sequence": 0}, id="has not applied its copy"),
        pytest.param("behind_2", {"catch_up_lsn": "0/1"}, id="has it catch up with the others"),
    ],
)
def test_a_table_is_forgotten_when_every_worker_has_what_there_was_of_it(
    streaming: StreamingGroup, table: str, behind: dict[str, Any]
) -> None:
    group, record = streaming, streaming.table(table)
    assert record is not None
    group.source.execute("INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), 'so that there is something in the stream')")
    group.wait_until_published()
    here = WorkerReport(0, snapshot_sequence=record.last_sequence)
    is_behind = replace(here, catching_up=(record.oid,) if "catch_up_lsn" in behind else (), **behind)
    group.ask(lambda bucket: bucket.put(worker_key("w"), is_behind))
    code, _ = group.order("forget", "--yes", "--wait", "3", table)
    assert code == 75
    assert group.listed()[f"public.{table}"].phase == "left"
    group.ask(lambda bucket: bucket.put(worker_key("w"), here))
    wait_until(lambda: group.table(table) is None, deadline_s=60, what="the table is forgotten", interval_s=0.1)
    assert f"public.{table}" not in group.listed()
    group.ask(lambda bucket: bucket.delete(worker_key("w")))


def test_an_order_waits_for_the_replicator_s_start(streaming: StreamingGroup) -> None:
    group = streaming
    group.create("waits", 3)
    group.stop()
    code, said = group.order("add", "--wait", "0.5", "waits")
    assert code == 75
    assert "start the replicator, which executes it" in said
    assert ": add waits waits for the replicator" in group.order("list")[1]
    group.start()
    assert group.wait_for_copy("waits").rows == 3


def test_a_table_whose_time_has_come_is_tried_again_by_itself(streaming: StreamingGroup) -> None:
    group, record = streaming, streaming.table("t")
    assert record is not None
    group.stop()
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()  # a start copies nothing again that is errored
    errored = record.enter(Phase.ERRORED, error="its turn never came", retry=Retry.TIMED, retry_at=soon)
    group.ask(lambda bucket: Ledger(bucket).store_table(errored))
    group.start()
    group.wait_for_copy("t", attempt=record.attempt + 1)
    assert group.read("t") == group.at_source("t")


def test_a_table_that_cannot_join_is_errored_until_it_is_asked_for_again_or_no_longer(streaming: StreamingGroup) -> None:
    group = streaming
    for table in ("refused", "unwanted"):
        group.create(table, 3)
    group.source.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;"
        " CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('ALTER PUBLICATION') EXECUTE FUNCTION refuse()"
    )
    code, said = group.order("add", "--wait", str(COPY_DEADLINE_S), "refused", "unwanted")
    assert code == 70
    assert said.count("failed (SQLSTATE P0001): see the server's log: ALTER PUBLICATION") == 2
    group.source.execute("DROP EVENT TRIGGER refuse")
    assert [group.listed()[f"public.{table}"].phase for table in ("refused", "unwanted")] == ["errored", "errored"]
    wait_until(lambda: finished(group), what="a copy that waits for none of them")
    assert "public.refused: 3 rows are copied" in group.ordered("retry", "refused")
    assert group.read("refused") == group.at_source("refused")
    assert group.published() & {"refused", "unwanted"} == {"refused"}
    group.ordered("remove", "unwanted")
    left = group.table("unwanted")
    assert left is not None
    assert left.phase is Phase.LEFT


@pytest.mark.long
def test_a_pattern_without_a_schema_has_tables_of_every_schema_copied_again(make_group: MakeGroup) -> None:
    group = make_group(tables="t,sales.*")
    group.source.execute("CREATE SCHEMA sales; CREATE TABLE sales.orders (id bigint PRIMARY KEY)")
    with group.running():
        for table in ("t", "orders"):
            group.wait_for_copy(table)
        for arguments in (("recopy", "*"), ("recopy", "--all")):
            said = group.ordered(*arguments)
            assert "public.t: is copied again" in said
            assert "sales.orders: is copied again" in said
        assert "*: fits 2 tables, each of which is not errored" in group.ordered("retry", "*")
        assert group.order("recopy")[0] == group.order("recopy", "--all", "t")[0] == 2


def test_what_cannot_be_done_is_refused_and_says_why(streaming: StreamingGroup) -> None:
    group = streaming
    group.source.execute("CREATE TABLE keyless (v text); CREATE VIEW seen AS SELECT 1 AS one")
    published, added = group.published(), group.ask(load_selection).added
    for verb, *tables_and_reasons in (
        (
            "add",
            ("keyless", "ALTER TABLE public.keyless REPLICA IDENTITY FULL"),
            ("seen", "public.seen is a view"),
            ("nowhere", "table 'public.nowhere' does not exist in the source"),
        ),
        ("remove", ("nowhere", "is not among the tables of this group")),
        ("recopy", ("nowhere", "is not among the tables of this group")),
        ("retry", ("t", "is not errored")),
        ("forget", ("nowhere", "is not known to this group")),
    ):
        tables = [table for table, _ in tables_and_reasons]
        code, said = group.order(verb, *(["--yes"] if verb == "forget" else []), *tables)
        assert code == 70, (verb, said)
        for table, reason in tables_and_reasons:
            assert any(line.startswith(f"public.{table}: ") and reason in line for line in said.splitlines()), (verb, table, said)
    assert group.process.is_running
    assert group.order("add", "a.b.c")[0] == 2
    assert (group.published(), group.ask(load_selection).added) == (published, added)


@pytest.mark.long
def test_a_table_that_is_never_free_is_tried_again_by_itself(make_group: MakeGroup) -> None:
    group = make_group()
    group.create("u", 3)
    with group.running():
        group.wait_for_copy("t")
        with group.source.connect(autocommit=False) as writer:
            writer.execute("INSERT INTO u VALUES (4, 'open')")
            group.order("add", "--no-wait", "u")
            record = group.wait_for_table("u", lambda record: record.phase is Phase.ERRORED, "the end of patience")
            assert record.retry is Retry.TIMED
            assert group.published() == {"t"}
            snapshot = group.ledger().snapshot
            assert snapshot is not None
            assert snapshot.state is CopyState.FINISHED
            writer.commit()
        assert group.wait_for_copy("u").failures == 0
        assert group.read("t", "u") == group.at_source("t", "u")


def test_a_group_that_only_streams_takes_a_table_only_when_its_rows_may_be_missing(make_group: MakeGroup) -> None:
    group = make_group(copy_and_stream=False)
    group.create("u", 3)
    with group.running():
        code, said = group.order("add", "u")
        assert code == 70
        assert "the rows that it holds would be missing at the targets" in said
        assert "--without-copy" in said
        assert "is replicated from now on" in group.ordered("add", "--without-copy", "u")
        group.insert("u", 4, 6)
        assert group.order("recopy", "u")[0] == 70
    with group.running():
        assert group.published() == {"t", "u"}
