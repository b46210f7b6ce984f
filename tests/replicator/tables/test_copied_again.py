"""Tables whose rows got other values without a row in the log are copied again by themselves, and no kill hides it."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.wire.position import parse_lsn
from tests.end_to_end.once import replicate, succeed
from tests.replicator.tables.conftest import MakeGroup
from tests.waiting import wait_until


def test_a_rewritten_table_is_copied_again_and_the_others_are_not(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", track_ddl=True)
    group.create("u", 100)
    with group.running() as process:
        before = group.wait_for_copy("u")
        group.source.execute("BEGIN; UPDATE u SET v = '7' WHERE id = 1; ALTER TABLE u ALTER v TYPE text USING v || '!'; COMMIT")
        group.source.execute("UPDATE u SET v = 'after' WHERE id = 2")
        after = group.wait_for_copy("u", attempt=2)
        group.insert("u", 101, 105)
        assert group.read("u") == group.at_source("u")
        assert parse_lsn(after.lsn) > parse_lsn(before.lsn)
        assert 'a table is copied again  table=public.u reason="its rows were rewritten at the source"' in process.log()
        group.source.execute("ALTER TABLE u ALTER id TYPE int; ALTER TABLE t ADD x int DEFAULT 1; CREATE INDEX ON t (v)")
        group.wait_for_copy("u", attempt=3)
        group.source.execute("VACUUM FULL t")
        group.source.execute("CLUSTER t USING t_pkey")
        group.wait_until_published()
    table = group.table("t")
    assert table is not None
    assert table.attempt == 1


def test_a_partition_that_is_attached_with_rows_has_its_table_copied_again_and_an_empty_one_not(make_group: MakeGroup) -> None:
    group = make_group(tables="t,p", track_ddl=True)
    group.source.execute("CREATE TABLE p (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    group.source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    for name in ("empty", "filled"):
        group.create(name)
    group.insert("p", 1, 3)
    group.insert("filled", 30, 33)
    with group.running():
        group.wait_for_copy("p")
        group.source.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
        group.source.execute("ALTER TABLE p ATTACH PARTITION empty FOR VALUES FROM (20) TO (30)")
        group.wait_until_published()  # rows that come before it is looked at might have been there
        group.insert("p", 12, 13)
        group.insert("p", 22, 23)
        group.wait_until_published()
        record = group.table("p")
        assert record is not None
        assert (record.attempt, record.phase) == (1, Phase.FINISHED_COPY)
        group.source.execute("ALTER TABLE p ATTACH PARTITION filled FOR VALUES FROM (30) TO (40)")
        assert group.wait_for_copy("p", attempt=2).rows == 11
        assert group.read("p") == group.at_source("p")


def waits(record: Any) -> bool:
    return bool(record.phase.is_waiting_for_copy)


def test_a_replicator_killed_behind_a_rewrite_copies_the_table_at_the_next_start(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", track_ddl=True)
    group.create("u", 100)
    with group.running():
        group.wait_for_copy("u")
        with group.source.connect(autocommit=False) as writer:
            writer.execute("UPDATE t SET v = 'open' WHERE id = 1")  # the copy's slot waits for it
            group.source.execute("ALTER TABLE u ALTER v TYPE text USING v || '!'")
            group.wait_for_table("u", waits, "the order")
            group.process.kill()
            writer.commit()
    with group.running():
        group.wait_for_copy("u", attempt=2)
        assert group.read("t", "u") == group.at_source("t", "u")


def test_a_rewrite_while_nobody_runs_is_told_by_the_slot(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", track_ddl=True)
    group.create("u", 100)
    with group.running():
        group.wait_for_copy("u")
    group.source.execute("ALTER TABLE u ALTER v TYPE text USING v || '!'")
    with group.running():
        group.wait_for_copy("u", attempt=2)
        assert group.read("u") == group.at_source("u")
    with group.running():
        group.wait_until_published()
    record = group.table("u")
    assert record is not None
    assert record.attempt == 2


@pytest.mark.long
def test_a_table_that_is_rewritten_all_the_time_is_given_up_for_a_while_and_tried_again_by_itself(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", track_ddl=True)
    group.create("u", 100)
    with group.running():
        group.wait_for_copy("u")
        number = 0

        def is_given_up() -> bool:
            nonlocal number
            number += 1
            with group.source.connect() as connection:
                connection.execute(f"ALTER TABLE u ALTER v TYPE text USING 'v{number}'".encode())
            record = group.table("u")
            return record is not None and record.phase is Phase.ERRORED

        wait_until(is_given_up, deadline_s=60.0, what="a table that is given up", interval_s=0)
        listed = group.listed()["public.u"]
        assert listed["retry"] == "timed"
        assert listed["retry_at"]
        group.wait_for_copy("u", attempt=2)
        assert group.read("u") == group.at_source("u")


def test_a_run_that_ends_by_itself_has_copied_what_a_rewrite_just_before_asked_for(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", track_ddl=True)
    group.create("u", 100)
    succeed(replicate(group.keys))
    group.source.execute("INSERT INTO t VALUES (11, 'before'); ALTER TABLE u ALTER v TYPE text USING v || '!'")
    succeed(replicate(group.keys))
    record = group.table("u")
    assert record is not None
    assert (record.phase, record.attempt) == (Phase.FINISHED_COPY, 2)
    assert group.in_the_streams("t", "u") == group.at_source("t", "u")


def test_a_table_that_was_altered_and_dropped_while_nobody_ran_holds_up_no_worker(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u,p", track_ddl=True)
    group.create("u", 100)
    group.source.execute("CREATE TABLE p (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    group.create("filled", 3)
    succeed(replicate(group.keys))
    before = group.table("u")
    assert before is not None
    assert before.lsn
    group.source.execute("ALTER TABLE u ALTER v TYPE text USING v || '!'; INSERT INTO u VALUES (101, 'x'); DROP TABLE u")
    group.source.execute("ALTER TABLE p ATTACH PARTITION filled FOR VALUES FROM (0) TO (10); DROP TABLE p")
    succeed(replicate(group.keys | {"tables": "t"}))
    for name in ("u", "p"):
        record = group.table(name)
        assert record is not None
        assert (record.phase, record.lsn) == (Phase.LEFT, ""), name
