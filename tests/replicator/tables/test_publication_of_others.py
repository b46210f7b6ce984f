"""A publication that an administrator alters while the group streams: whatever way a table comes, its rows are copied before its
changes count; whatever way one goes, it alone leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Phase, TableRecord
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.waiting import wait_until

PARTITIONED = "PARTITION BY RANGE (id)"


def is_left(record: TableRecord) -> bool:
    return record.phase is Phase.LEFT


def check_equal(group: StreamingGroup, *tables: str) -> None:
    for table in tables:
        name = table.rpartition(".")[2]
        assert group.read(name)[name] == group.at_source(table)[table], table


@pytest.fixture(scope="module")
def administered(make_shared_group: MakeGroup) -> Iterator[StreamingGroup]:
    """All that the publication holds, without track-ddl: it looks for itself."""
    group = make_shared_group(tables=[], publication="chosen")
    source = group.source
    for schema in ("s1", "s2", "s3"):
        source.execute(f"CREATE SCHEMA {schema}")
    for table in ("s1.first", "s1.goes", "s1.emptied", "s2.moved", "s3.third", "added", "part_of_root"):
        group.create(table, 10)
    source.execute(f"CREATE TABLE s1.root (id bigint PRIMARY KEY, v text) {PARTITIONED}")
    source.execute("CREATE TABLE s1.root_1 PARTITION OF s1.root FOR VALUES FROM (100) TO (200)")
    source.execute(
        "CREATE PUBLICATION chosen FOR TABLES IN SCHEMA s1, TABLE t, part_of_root WITH (publish_via_partition_root = true)"
    )
    with group.running():
        for table in ("t", "first", "goes", "root", "part_of_root", "emptied"):
            group.wait_for_copy(table)
        yield group


def test_a_table_that_is_moved_into_a_published_schema_is_copied_before_its_changes_count(administered: StreamingGroup) -> None:
    group = administered
    group.source.execute("ALTER TABLE s2.moved SET SCHEMA s1")
    group.insert("s1.moved", 11, 11)
    group.source.execute("UPDATE s1.moved SET v = 'updated' WHERE id = 2")
    group.wait_for_copy("moved")
    group.insert("s1.moved", 12, 14)
    check_equal(group, "s1.moved")


def test_tables_that_an_administrator_adds_one_by_one_or_with_their_schema_are_copied(administered: StreamingGroup) -> None:
    group = administered
    group.source.execute("ALTER PUBLICATION chosen ADD TABLE added")
    group.insert("added", 11, 12)
    group.source.execute("ALTER PUBLICATION chosen ADD TABLES IN SCHEMA s3")
    group.insert("s3.third", 11, 12)
    group.source.execute("TRUNCATE t, s3.third")
    group.insert("s3.third", 20, 22)
    for table in ("added", "third"):
        group.wait_for_copy(table)
    group.source.execute("DELETE FROM added WHERE id = 3; UPDATE s3.third SET v = 'updated' WHERE id = 21")
    check_equal(group, "added", "s3.third", "t")


def test_a_table_that_is_attached_to_a_published_root_has_the_root_copied_again(administered: StreamingGroup) -> None:
    group = administered
    group.source.execute("ALTER TABLE s1.root ATTACH PARTITION part_of_root FOR VALUES FROM (1) TO (100)")
    group.insert("s1.root", 11, 12)
    group.wait_for_copy("root", attempt=2)
    group.wait_for_table("part_of_root", is_left, "the end")
    group.source.execute("UPDATE part_of_root SET v = 'updated' WHERE id = 3")
    check_equal(group, "s1.root")


def test_a_table_that_leaves_leaves_alone_and_is_copied_anew_when_it_returns(administered: StreamingGroup) -> None:
    group = administered
    group.source.execute("ALTER TABLE s1.goes SET SCHEMA s2")
    group.insert("s2.goes", 11, 12)
    group.wait_for_table("goes", is_left, "the end")
    group.restart()
    group.insert("s1.first", 11, 12)
    group.source.execute("ALTER TABLE s2.goes SET SCHEMA s1")
    group.insert("s1.goes", 13, 14)
    group.wait_for_copy("goes", attempt=2)
    check_equal(group, "s1.goes", "s1.first")


def test_a_table_that_was_taken_out_and_in_between_two_looks_is_copied_again(administered: StreamingGroup) -> None:
    group = administered
    group.source.execute(
        "BEGIN; ALTER TABLE s1.emptied SET SCHEMA s2; DELETE FROM s2.emptied WHERE id < 5; ALTER TABLE s2.emptied SET SCHEMA s1;"
        " COMMIT"
    )
    group.wait_for_copy("emptied", attempt=2)
    check_equal(group, "s1.emptied")


@pytest.fixture(scope="module")
def choosing(make_shared_group: MakeGroup) -> Iterator[StreamingGroup]:
    """``tables`` names fewer than an administrator publishes."""
    group = make_shared_group(tables="t", publication="chosen")
    group.create("unwanted", 10)
    group.source.execute("CREATE PUBLICATION chosen FOR TABLE t")
    with group.running():
        group.wait_for_copy("t")
        yield group


def test_a_table_that_an_administrator_adds_and_tables_does_not_name_is_left_out_until_it_does(choosing: StreamingGroup) -> None:
    group = choosing
    oid = oid_of(group, "unwanted")
    group.source.execute("ALTER PUBLICATION chosen ADD TABLE unwanted")
    group.source.execute(
        "BEGIN; INSERT INTO t VALUES (11, 'a'); INSERT INTO unwanted VALUES (11, 'b'); TRUNCATE unwanted; COMMIT"
    )
    group.process.wait_for_log("the publication has a table that the group does not ask for; it is left out")
    group.restart()
    group.source.execute("INSERT INTO unwanted VALUES (12, 'c'); INSERT INTO t VALUES (12, 'd')")
    check_equal(group, "t")
    assert group.table("unwanted") is None
    assert group.changes_of(oid) == 0
    group.reconfigure(tables="t,unwanted")
    group.wait_for_copy("unwanted")
    group.insert("unwanted", 21, 23)
    check_equal(group, "t", "unwanted")


@pytest.fixture(scope="module")
def own(make_shared_group: MakeGroup) -> Iterator[StreamingGroup]:
    """The group's own publication, without track-ddl."""
    group = make_shared_group(tables="t,orders,loses")
    for table in ("orders", "orders_new", "loses", "stranger"):
        group.create(table, 10)
    group.source.execute("CREATE SCHEMA strange; CREATE TABLE strange.one (id bigint PRIMARY KEY, v text)")
    with group.running():
        for table in ("t", "orders", "loses"):
            group.wait_for_copy(table)
        yield group


def test_a_table_that_takes_over_a_wanted_name_by_renaming_is_copied_in_its_place(own: StreamingGroup) -> None:
    group = own
    group.source.execute("BEGIN; ALTER TABLE orders RENAME TO orders_old; ALTER TABLE orders_new RENAME TO orders; COMMIT")
    group.source.execute("INSERT INTO orders VALUES (11, 'new'); INSERT INTO orders_old VALUES (12, 'old')")
    oid = oid_of(group, "orders")
    group.wait_for_table("orders", lambda record: record.oid == oid and record.phase is Phase.FINISHED_COPY, "the copy")
    group.insert("orders", 13, 14)
    check_equal(group, "orders")


def test_what_somebody_does_to_the_group_s_own_publication_costs_a_copy_of_that_table_alone(own: StreamingGroup) -> None:
    group, name = own, own.names.publication
    group.source.execute(f"ALTER PUBLICATION {name} DROP TABLE loses")
    group.insert("loses", 11, 12)
    group.source.execute(f"ALTER PUBLICATION {name} ADD TABLE loses, stranger, TABLES IN SCHEMA strange")
    group.source.execute(
        "INSERT INTO stranger VALUES (11, 'a'); INSERT INTO strange.one VALUES (1, 'a'); INSERT INTO t VALUES (11, 'a')"
    )
    group.wait_for_copy("loses", attempt=2)
    wait_until(lambda: not group.published() & {"stranger", "one"}, what="the publication as it was")
    group.insert("loses", 13, 14)
    check_equal(group, "loses", "t")
    assert group.table("t") is not None
    assert group.wait_for_copy("t").attempt == 1
    assert (group.table("stranger"), group.table("one")) == (None, None)


def test_a_dropped_table_is_forgotten_once_the_streams_hold_nothing_of_it(make_group: MakeGroup) -> None:
    """But for its name: one that takes it is copied into an emptied table."""
    group = make_group(tables="t,passes,never")
    for table in ("passes", "never"):
        group.create(table, 5)
    with group.running():
        for table in ("t", "passes", "never"):
            group.wait_for_copy(table)
        group.source.execute("DROP TABLE passes")
        group.wait_for_table("passes", is_left, "the end")
        group.insert("t", 11, 12)
        group.wait_until_published()
        asyncio.run(empty_streams(group))
        wait_until(lambda: group.table("passes") is None, what="the end of what is known of the table")
        assert "public.passes" not in group.listed()
        assert "ERROR" not in group.process.log()
        group.create("passes", 3)
        assert group.wait_for_copy("passes", attempt=2).rows == 3


async def empty_streams(group: StreamingGroup) -> None:
    """As retention does, but for the newest change."""
    async with connected(group.nats.settings(), "test") as client:
        for stream, kept in ((ChangeStream(client, group.names), 1), (SnapshotStream(client, group.names), 0)):
            state = await stream.state()
            assert state is not None
            await stream.purge_up_to(state.last_sequence - kept)


def test_a_group_that_only_streams_follows_what_is_made_in_a_published_schema_and_leaves_out_what_comes_with_rows(
    make_group: MakeGroup,
) -> None:
    group = make_group(tables=[], publication="chosen", copy_and_stream=False)
    source = group.source
    source.execute("CREATE SCHEMA s1; CREATE SCHEMA s2")
    for table in ("s2.moved", "s1.leaves", "added"):
        group.create(table, 10)
    source.execute("CREATE PUBLICATION chosen FOR TABLE t, TABLES IN SCHEMA s1")
    oids = {table: oid_of(group, table) for table in ("s2.moved", "added", "t", "s1.leaves")}
    with group.running() as process:
        seen_at = group.membership().seen_at
        wait_until(lambda: group.membership().seen_at > seen_at, what="another look")
        source.execute("BEGIN; CREATE TABLE s1.born (id bigint PRIMARY KEY, v text); INSERT INTO s1.born VALUES (1, 'a'); COMMIT")
        source.execute("ALTER TABLE s2.moved SET SCHEMA s1; INSERT INTO s1.moved VALUES (11, 'a')")
        source.execute("ALTER PUBLICATION chosen ADD TABLE added; INSERT INTO added VALUES (11, 'a')")
        source.execute("ALTER TABLE s1.leaves SET SCHEMA s2; INSERT INTO t VALUES (11, 'a')")
        for table in ("s1.moved", "public.added"):
            process.wait_for_log(f"are missing at the targets  table={table}")
        process.wait_for_log("another client removed it from the publication")
        group.restart()
        source.execute("INSERT INTO s1.born VALUES (2, 'b'); INSERT INTO s1.moved VALUES (12, 'b')")
        source.execute("INSERT INTO added VALUES (12, 'b'); INSERT INTO t VALUES (12, 'b')")
        found = {table: group.changes_of(oid) for table, oid in oids.items()}
        assert found == {"s2.moved": 0, "added": 0, "t": 2, "s1.leaves": 0}
        assert group.changes_of(oid_of(group, "s1.born")) == 2
        group.ordered("add", "--without-copy", "added")
        source.execute("INSERT INTO added VALUES (13, 'c')")
        assert group.changes_of(oids["added"]) == 1


def oid_of(group: StreamingGroup, table: str) -> int:
    [(oid,)] = group.source.execute(f"SELECT '{table}'::regclass::oid::bigint")
    return int(str(oid))


def test_a_table_that_tables_names_and_an_administrator_takes_out_stops_nobody_at_the_next_start(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u", publication="chosen", copy_and_stream=False)
    group.create("u", 3)
    group.source.execute("CREATE PUBLICATION chosen FOR TABLE t, u")
    with group.running() as process:
        group.source.execute("ALTER PUBLICATION chosen DROP TABLE u")
        process.wait_for_log("another client removed it from the publication")
        for _ in range(2):
            group.restart()
            process.wait_for_log("does not publish public.u")
        group.insert("t", 11, 12)
        assert group.changes_of(oid_of(group, "t")) == 2
