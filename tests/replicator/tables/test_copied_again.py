"""Tables whose rows got other values without a row in the log are copied again by themselves, and no kill hides it.

The group has track-ddl, and looks at its tables so seldom by itself that whatever follows in time follows from what it was told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.wire.position import parse_lsn
from tests.end_to_end.once import replicate, succeed
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.waiting import wait_until

STAYING = "t,u,typed,p,killed,idle,ended,order_*"
REWRITE = "ALTER TABLE {} ALTER v TYPE text USING v || '!'"


def record_of(group: StreamingGroup, table: str) -> TableRecord:
    record = group.table(table)
    assert record is not None
    return record


@pytest.fixture(scope="module")
def tracking(make_shared_group: MakeGroup) -> Iterator[StreamingGroup]:
    """Whoever stops it starts it again."""
    group = make_shared_group(tables=f"{STAYING},gone,q", track_ddl=True, check_interval="60s")
    for table in ("u", "typed", "killed", "idle", "ended", "gone"):
        group.create(table, 100)
    group.create("order_1", 3)
    for table in ("p", "q"):
        group.source.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    group.source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    group.insert("p", 1, 3)
    with group.running():
        for table in ("t", "u", "typed", "killed", "idle", "ended", "gone", "order_1", "p", "q"):
            group.wait_for_copy(table)
        yield group


@dataclass(frozen=True)
class Altered:
    """``u`` as it was copied first, and ``p`` when partitions without rows had been attached."""

    u: TableRecord
    p: TableRecord


@pytest.fixture(scope="module")
def altered(tracking: StreamingGroup) -> Altered:
    """``t`` was altered and moved about, ``u`` and ``typed`` were rewritten, partitions came to ``p``, ``order_2`` was made."""
    group = tracking
    u = record_of(group, "u")
    group.source.execute("ALTER TABLE t ADD x int DEFAULT 1; CREATE INDEX ON t (v)")
    group.source.execute("VACUUM FULL t")
    group.source.execute("CLUSTER t USING t_pkey")
    for name in ("empty", "filled"):
        group.create(name)
    group.insert("filled", 30, 33)
    group.source.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    group.source.execute("ALTER TABLE p ATTACH PARTITION empty FOR VALUES FROM (20) TO (30)")
    group.wait_until_published()  # rows that come before it is looked at might have been there
    group.insert("p", 12, 13)
    group.insert("p", 22, 23)
    group.wait_until_published()
    p = record_of(group, "p")
    group.source.execute("CREATE TABLE order_keyless (id bigint, v text)")
    group.source.execute(
        "BEGIN; CREATE TABLE order_2 (id bigint PRIMARY KEY, v text); INSERT INTO order_2 VALUES (1, 'first'); COMMIT"
    )
    group.insert("order_2", 2, 9)
    group.source.execute(f"BEGIN; UPDATE u SET v = '7' WHERE id = 1; {REWRITE.format('u')}; COMMIT")
    group.source.execute("UPDATE u SET v = 'after' WHERE id = 2")
    group.source.execute("ALTER TABLE typed ALTER id TYPE int")
    group.source.execute("ALTER TABLE p ATTACH PARTITION filled FOR VALUES FROM (30) TO (40)")
    for table in ("u", "typed", "p"):
        group.wait_for_copy(table, attempt=2)
    group.wait_for_copy("order_2")
    return Altered(u, p)


def test_a_rewritten_table_is_copied_again_and_the_others_are_not(tracking: StreamingGroup, altered: Altered) -> None:
    group = tracking
    group.insert("u", 101, 105)
    assert group.read("u", "typed") == group.at_source("u", "typed")
    assert parse_lsn(record_of(group, "u").lsn) > parse_lsn(altered.u.lsn)
    assert 'a table is copied again  table=public.u reason="its rows were rewritten at the source"' in group.process.log()
    assert record_of(group, "t").attempt == 1


def test_a_partition_that_is_attached_with_rows_has_its_table_copied_again_and_an_empty_one_not(
    tracking: StreamingGroup, altered: Altered
) -> None:
    assert (altered.p.attempt, altered.p.phase) == (1, Phase.FINISHED_COPY)
    assert record_of(tracking, "p").rows == 11
    assert tracking.read("p") == tracking.at_source("p")


def test_a_table_that_a_pattern_matches_joins_as_soon_as_the_source_tells_of_it(
    tracking: StreamingGroup, altered: Altered
) -> None:
    group = tracking
    group.insert("order_2", 10, 12)
    assert group.read("order_2") == group.at_source("order_2")
    group.process.wait_for_log("without a primary key or replica identity: public.order_keyless")
    group.source.execute("DROP TABLE order_2")
    group.wait_for_table("order_2", lambda record: record.phase is Phase.LEFT, "the end")
    assert "it was dropped at the source" in group.process.log()


def waits(record: Any) -> bool:
    return bool(record.phase.is_waiting_for_copy)


@pytest.fixture(scope="module")
def killed(tracking: StreamingGroup) -> StreamingGroup:
    """The replicator was killed when it knew that ``killed`` was rewritten; then ``idle`` was, and ``order_late`` got a key."""
    group = tracking
    group.source.execute("CREATE TABLE order_late (id bigint, v text)")
    with group.source.connect(autocommit=False) as writer:
        writer.execute("UPDATE t SET v = 'open' WHERE id = 1")  # the copy's slot waits for it
        group.source.execute(REWRITE.format("killed"))
        group.wait_for_table("killed", waits, "the order")
        group.process.kill()
        writer.commit()
    group.source.execute(REWRITE.format("idle"))
    group.source.execute("ALTER TABLE order_late ADD PRIMARY KEY (id)")
    group.start()
    for table in ("killed", "idle"):
        group.wait_for_copy(table, attempt=2)
    return group


def test_a_replicator_killed_behind_a_rewrite_copies_the_table_at_the_next_start(killed: StreamingGroup) -> None:
    assert killed.read("t", "killed") == killed.at_source("t", "killed")


def test_a_rewrite_while_nobody_runs_is_told_by_the_slot(killed: StreamingGroup) -> None:
    assert killed.read("idle") == killed.at_source("idle")
    assert "order_late" in killed.published()
    killed.restart()
    killed.wait_until_published()
    assert {record_of(killed, table).attempt for table in ("killed", "idle")} == {2}


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
        assert listed.retry == "timed"
        assert listed.retry_at
        group.wait_for_copy("u", attempt=2)
        assert group.read("u") == group.at_source("u")


@pytest.fixture(scope="module")
def ended(tracking: StreamingGroup) -> Iterator[StreamingGroup]:
    """While nobody ran, ``ended`` was rewritten, ``gone`` and ``q`` were altered and dropped; then a run ended by itself."""
    group = tracking
    group.stop()
    before = {table: record_of(group, table) for table in ("gone", "q")}
    assert before["gone"].lsn
    group.source.execute(f"INSERT INTO t VALUES (11, 'before'); {REWRITE.format('ended')}")
    group.source.execute(f"{REWRITE.format('gone')}; INSERT INTO gone VALUES (101, 'x'); DROP TABLE gone")
    group.create("filled_q", 3)
    group.source.execute("ALTER TABLE q ATTACH PARTITION filled_q FOR VALUES FROM (0) TO (10); DROP TABLE q")
    group.write(tables=STAYING)
    succeed(replicate(group.keys))
    yield group
    group.start()


def test_a_run_that_ends_by_itself_has_copied_what_a_rewrite_just_before_asked_for(ended: StreamingGroup) -> None:
    record = record_of(ended, "ended")
    assert (record.phase, record.attempt) == (Phase.FINISHED_COPY, 2)
    assert ended.in_the_streams("t", "ended") == ended.at_source("t", "ended")


def test_a_table_that_was_altered_and_dropped_while_nobody_ran_holds_up_no_worker(ended: StreamingGroup) -> None:
    for name in ("gone", "q"):
        record = record_of(ended, name)
        assert (record.phase, record.lsn) == (Phase.LEFT, ""), name
