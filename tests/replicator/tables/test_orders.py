"""Tables are added, removed, copied again and forgotten by command while the group streams, and nothing of a row goes missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pgsluice.shared.broker.ledger import CopyState, Phase, Retry
from pgsluice.shared.broker.table_selection import load_selection
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.wire.position import parse_lsn
from tests.replicator.snapshot.table_gate import TableGate
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.waiting import wait_until


@contextmanager
def writing(group: StreamingGroup, table: str) -> Iterator[None]:
    """Somebody inserts, updates and deletes rows of ``table`` all the time."""
    stopped = threading.Event()

    def write() -> None:
        with group.source.connect() as application:
            number = 100_000
            while not stopped.is_set():
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


def test_a_table_is_added_while_it_is_written_to_and_others_stream_on(make_group: MakeGroup) -> None:
    group = make_group()
    group.create("u", 5_000)
    with group.running(), writing(group, "u"), writing(group, "t"):
        group.wait_for_copy("t")
        with TableGate(group.source, "u"):
            code, said = group.order("add", "--wait", "0", "u")
            assert code in (0, 75), said
        record = group.wait_for_copy("u")
    with group.running():
        streamed = group.read("t", "u")
    assert streamed == group.at_source("t", "u")
    assert group.published() == {"t", "u"}
    assert record.last_sequence > 0
    snapshot = group.ledger().snapshot
    assert snapshot is not None
    assert (snapshot.state, snapshot.last_sequence) == (CopyState.FINISHED, record.last_sequence)
    assert parse_lsn(record.lsn) > 0


def test_what_was_added_and_removed_holds_over_a_restart_until_the_configuration_says_so(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u")
    group.create("u", 3)
    group.create("w", 3)
    with group.running():
        group.wait_for_copy("u")
        assert "public.w: 3 rows are copied" in group.ordered("add", "w")
        assert "public.u: is not replicated any more" in group.ordered("remove", "public.u")
    listed = group.listed()
    assert {name: (table["phase"], table["origin"]) for name, table in listed.items()} == {
        "public.t": ("finished_copy", "configuration"),
        "public.u": ("left", "removed"),
        "public.w": ("finished_copy", "added"),
    }
    with group.running():
        assert group.published() == {"t", "w"}
        group.insert("w", 4, 5)
        assert group.read("w") == group.at_source("w")
    group.write(tables="t,w")
    with group.running() as process:
        assert (
            "the configuration has caught up with what was added and removed by command  tables=public.w,public.u"
            in process.log()
        )
        assert group.published() == {"t", "w"}
    selection = group.ask(load_selection)
    assert (selection.added, selection.removed) == ((), ())


def test_an_order_waits_for_the_replicator_s_start(make_group: MakeGroup) -> None:
    group = make_group()
    group.create("u", 3)
    with group.running():
        group.wait_for_copy("t")
    code, said = group.order("add", "--wait", "0.5", "u")
    assert code == 75
    assert "start the replicator, which carries it out" in said
    assert "order 1: add u waits for the replicator" in group.order("list")[1]
    with group.running():
        assert group.wait_for_copy("u").rows == 3


def test_a_table_is_copied_again_into_another_attempt(make_group: MakeGroup) -> None:
    group = make_group()
    with group.running():
        before = group.wait_for_copy("t")
        group.insert("t", 11, 20)
        assert "public.t: 20 rows are copied" in group.ordered("recopy", "t")
        after = group.wait_for_copy("t")
        group.insert("t", 21, 30)
        assert group.read("t") == group.at_source("t")
    assert after.attempt == before.attempt + 1
    assert parse_lsn(after.lsn) > parse_lsn(before.lsn)
    assert after.last_sequence > before.last_sequence


def test_a_removed_table_returns_with_a_copy_and_a_forgotten_one_is_not_known_any_more(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u")
    group.create("u", 3)
    with group.running():
        group.wait_for_copy("u")
        group.ordered("remove", "u")
        group.source.execute("INSERT INTO u VALUES (4, 'missed')")
        group.ordered("add", "u")
        assert group.wait_for_copy("u").attempt == 2
        assert group.read("u") == group.at_source("u")
        assert "public.u: is forgotten" in group.ordered("forget", "--yes", "u")
        assert "public.u" not in group.listed()
        assert group.published() == {"t"}
        assert group.membership().left == ()
    with group.running():
        assert group.published() == {"t"}


@pytest.mark.parametrize(
    "behind",
    [{"snapshot_sequence": 0}, {"catch_up_lsn": "0/1"}],
    ids=["has not applied its copy", "has it catch up with the others"],
)
def test_a_table_is_forgotten_when_every_worker_has_what_there_was_of_it(make_group: MakeGroup, behind: dict[str, Any]) -> None:
    group = make_group(tables="t,u")
    group.create("u", 3)
    with group.running():
        record = group.wait_for_copy("u")
        group.insert("t", 100, 100)
        group.wait_until_published()
        here = WorkerReport(0, snapshot_sequence=record.last_sequence)
        is_behind = replace(here, catching_up=(record.oid,) if "catch_up_lsn" in behind else (), **behind)
        group.ask(lambda bucket: bucket.put(worker_key("w"), is_behind))
        code, _ = group.order("forget", "--yes", "--wait", "3", "u")
        assert code == 75
        assert group.listed()["public.u"]["phase"] == "left"
        group.ask(lambda bucket: bucket.put(worker_key("w"), here))
        wait_until(lambda: "public.u" not in group.listed(), deadline_s=60, what="the table is forgotten")


def test_what_cannot_be_done_is_refused_and_says_why(make_group: MakeGroup) -> None:
    group = make_group()
    group.source.execute("CREATE TABLE keyless (v text); CREATE VIEW seen AS SELECT 1 AS one")
    with group.running() as process:
        group.wait_for_copy("t")
        for verb, table, reason in (
            ("add", "keyless", "ALTER TABLE public.keyless REPLICA IDENTITY FULL"),
            ("add", "seen", "public.seen is a view"),
            ("add", "nowhere", "table 'public.nowhere' does not exist in the source"),
            ("remove", "nowhere", "is not among the tables of this group"),
            ("recopy", "nowhere", "is not among the tables of this group"),
            ("retry", "t", "is not errored"),
            ("forget", "nowhere", "is not known to this group"),
        ):
            code, said = group.order(verb, table, *(["--yes"] if verb == "forget" else []))
            assert code == 70, (verb, said)
            assert reason in said
        assert process.is_running
        assert group.order("add", "a.b.c")[0] == 2
    assert group.published() == {"t"}
    assert group.ask(load_selection).added == ()


def test_a_table_that_cannot_be_copied_is_errored_alone_and_copied_when_asked_again(make_group: MakeGroup) -> None:
    group = make_group()
    group.source.execute("CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing")
    group.source.execute("CREATE TABLE p (id bigint, v text) PARTITION BY RANGE (id)")
    group.source.execute("CREATE TABLE p1 PARTITION OF p (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10)")
    group.source.execute("CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) SERVER nowhere")
    group.insert("p", 1, 3)
    with group.running():
        said = group.ordered("add", "p")
        assert "could not be copied: public.p2, a partition of public.p, is a foreign table" in said
        listed = group.listed()["public.p"]
        assert (listed["phase"], listed["retry"], listed["retry_at"]) == ("errored", "manual", "")
        group.insert("t", 11, 12)
        assert group.read("t") == group.at_source("t")
        group.source.execute("ALTER TABLE p DETACH PARTITION p2")
        assert "public.p: 3 rows are copied" in group.ordered("retry", "p")
        group.insert("p", 4, 5)
        assert group.read("p") == group.at_source("p")


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
