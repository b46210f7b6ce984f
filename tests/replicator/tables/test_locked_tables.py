"""Somebody has a table for himself for long: whatever needs nothing of it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.waiting import wait_until


@contextmanager
def locked(group: StreamingGroup, *tables: str) -> Iterator[None]:
    """As by ALTER TABLE, VACUUM FULL or CLUSTER of large tables."""
    with group.source.connect(autocommit=False) as holder:
        holder.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE".encode())
        yield


def partitioned_group(make_group: MakeGroup, **keys: Any) -> StreamingGroup:
    group = make_group(tables="t,u,p", track_ddl=True, **keys)
    group.create("u", 3)
    group.source.execute("CREATE TABLE p (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    group.source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)")
    return group


def wait_for_another_look(group: StreamingGroup) -> None:
    seen_at = group.membership().seen_at
    wait_until(lambda: group.membership().seen_at > seen_at, what="another look at the publication")


def test_other_tables_stream_join_and_are_altered_while_some_are_locked(make_group: MakeGroup) -> None:
    group = partitioned_group(make_group, copy_and_stream=False)
    group.create("w")
    with group.running(), locked(group, "u", "p1"):
        wait_for_another_look(group)
        group.source.execute("ALTER TABLE t ADD COLUMN added text")
        group.insert("t", 100, 110)
        group.wait_until_published()
        group.ordered("add", "--without-copy", "w")
    with locked(group, "u", "p1"), group.running():
        group.insert("w", 1, 10)
        group.wait_until_published()
        wait_for_another_look(group)
    assert group.published() == {"t", "u", "p", "w"}


@pytest.mark.long
def test_a_partition_that_nobody_may_look_into_is_taken_for_one_with_rows(make_group: MakeGroup) -> None:
    group = partitioned_group(make_group)
    with group.running():
        group.wait_for_copy("p")
    group.source.execute("CREATE TABLE p2 (LIKE p INCLUDING ALL); INSERT INTO p2 VALUES (150, 'held')")
    group.source.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200)")
    with group.source.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE p2 IN ACCESS EXCLUSIVE MODE")
        with group.running() as replicator:
            group.insert("t", 100, 110)
            group.wait_until_published()
            assert "pgsluice assumes that it has" in replicator.log()
            holder.rollback()
            group.wait_for_copy("p", attempt=2)
            assert group.read("p") == group.at_source("p")


def test_an_administrators_publication_is_looked_at_while_its_tables_are_locked(make_group: MakeGroup) -> None:
    group = make_group(tables=[], publication="chosen", copy_and_stream=False)
    group.create("u", 3)
    group.source.execute("CREATE SCHEMA s; CREATE TABLE s.v (id bigint PRIMARY KEY)")
    group.source.execute("CREATE PUBLICATION chosen FOR TABLE t, u WHERE (id > 1), TABLES IN SCHEMA s")
    with group.running():
        group.wait_until_published()
    with locked(group, "u", "s.v"), group.running():
        wait_for_another_look(group)
        group.insert("t", 100, 110)
        group.wait_until_published()


def test_a_table_that_cannot_leave_now_leaves_when_it_is_free(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", copy_and_stream=False)
    group.create("u", 3)
    with group.running() as replicator:
        with locked(group, "u"):
            group.reconfigure(tables="t")
            replicator.wait_for_log("a table that joins or leaves is in use, trying again")
            assert group.membership().making is not None, "it is announced before anything is altered"
            group.insert("t", 100, 110)
            group.wait_until_published()
        wait_until(lambda: group.published() == {"t"}, what="the end of the publication of u")


def test_a_table_leaves_while_its_partitions_are_locked(make_group: MakeGroup) -> None:
    group = partitioned_group(make_group, copy_and_stream=False)
    named = "SELECT prrelid::regclass::text FROM pg_publication_rel"
    with group.running(), locked(group, "p1"):
        group.reconfigure(tables="t,u")
        wait_until(lambda: set(group.source.execute(named)) == {("t",), ("u",)}, what="the end of the publication of p")
