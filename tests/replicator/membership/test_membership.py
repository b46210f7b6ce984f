"""Tables join, leave, return and are replaced, and people alter the publication: nothing goes missing without a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pgsluice.replicator.membership.membership import (
    MOST_BREAKS,
    Break,
    Making,
    Membership,
    load_membership,
    store_membership,
)
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import configuration
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until

CHECK_INTERVAL = "1s"


@pytest.fixture
def two_tables(replication: Group) -> Group:
    """A group that streams public.t and public.u."""
    replication.source.execute("CREATE TABLE u (id bigint PRIMARY KEY, v text)")
    replication.replicate(tables=("t", "u"))
    return replication


def membership(replication: Group) -> Membership:
    record = replication.with_broker(lambda _, bucket: load_membership(bucket))
    assert isinstance(record, Membership)
    return record


@contextmanager
def watching(replication: Group, nats: NatsServer, **keys: object) -> Iterator[PgsluiceProcess]:
    """A running replicator that looks at the publication every moment, and has done so once."""
    config = configuration(replication.name, replication.source, None, nats, **{"check-interval": CHECK_INTERVAL}, **keys)
    with PgsluiceProcess("replicator", config=config) as replicator:
        replicator.wait_for_log("replicating")
        wait_for_a_look(replication)
        try:
            yield replicator
        finally:
            print(replicator.log())


def wait_for_a_look(replication: Group) -> None:
    seen_at = membership(replication).seen_at
    wait_until(lambda: membership(replication).seen_at > seen_at, what="a look at the publication")


def shown(replication: Group, nats: NatsServer) -> str:
    with PgsluiceProcess("status", config={"group": replication.name, "nats-url": nats.url}) as process:
        assert process.wait() == 0, process.log()
        return process.stdout()


def test_a_table_that_leaves_is_named_and_remembered_and_may_not_return_in_silence(
    two_tables: Group, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    two_tables.replicate(tables=("t",))
    [left] = membership(two_tables).left
    assert (left.qualified_name, left.reason) == ("public.u", "it is no longer among the tables")
    assert "a table is not replicated any more" in caplog.text
    assert f"public.u is not replicated since {left.lsn}" in shown(two_tables, nats_server)
    for _ in range(2):
        with pytest.raises(TerminalError, match=rf"table public\.u was not replicated from {left.lsn} .* on"):
            two_tables.replicate(tables=("t", "u"))
    two_tables.replicate(tables=("t",))
    two_tables.replicate(tables=("t", "u"), without_copy=("public.u",))
    assert membership(two_tables).left == ()
    two_tables.replicate(tables=("t", "u"))


def test_a_table_that_was_made_again_is_said_to_be_whoever_finds_that(two_tables: Group) -> None:
    """A look at the publication beside a session, or whoever brings it to the tables that are wanted, as a start does."""
    two_tables.source.execute("DROP TABLE u; CREATE TABLE u (id bigint PRIMARY KEY, v text)")
    two_tables.replicate(tables=("t",))
    [left] = membership(two_tables).left
    assert (
        left.reason == "it was dropped and created again at the source; the new one is not replicated until an operator adds it"
    )


def test_a_table_that_joins_a_group_that_streams_is_refused_unless_it_is_asked_for(two_tables: Group) -> None:
    two_tables.source.execute("CREATE TABLE w (id int PRIMARY KEY)")
    with pytest.raises(UsageError, match=r"table public\.w joins a group that streams already.*--without-copy public\.w"):
        two_tables.replicate(tables=("t", "u", "w"))
    two_tables.replicate(tables=("t", "u", "w"), without_copy=("w",))
    two_tables.source.execute("INSERT INTO w VALUES (1)")
    two_tables.replicate(tables=("t", "u", "w"))
    assert two_tables.audit().rows == {"public.w insert": 1}


def test_a_new_table_of_a_whole_schema_is_named_and_left_out_of_a_group_that_streams(
    replication: Group, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    replication.replicate()
    replication.source.execute("CREATE TABLE w (id int PRIMARY KEY); INSERT INTO w VALUES (1)")
    replication.replicate()
    assert caplog.text.count("tables of a whole schema or a pattern are not replicated") == 1
    assert "public.w is not replicated" in shown(replication, nats_server)


def test_a_new_table_that_a_pattern_matches_is_named_and_others_are_not(replication: Group, nats_server: NatsServer) -> None:
    patterns = ("order_*", "*.t", "*.pg_cl*", "*.sql_f*")  # the last two match system tables alone
    replication.source.execute("CREATE TABLE order_1 (id int PRIMARY KEY)")
    replication.replicate(tables=patterns)
    replication.source.execute("CREATE TABLE order_2 (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    replication.source.execute("CREATE TABLE order_p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    replication.source.execute("CREATE TABLE order_p1 PARTITION OF order_p FOR VALUES FROM (1) TO (2)")
    replication.replicate(tables=patterns)
    status = shown(replication, nats_server)
    assert "public.order_2 is not replicated" in status
    assert "public.order_p is not replicated" in status
    assert status.count(" is not replicated") == 2


def test_a_table_that_was_made_again_under_its_name_is_refused_by_a_group_that_streams(two_tables: Group) -> None:
    two_tables.source.execute("DROP TABLE u; CREATE TABLE u (id bigint PRIMARY KEY, v text)")
    for _ in range(2):
        with pytest.raises(TerminalError, match=r"table public\.u was dropped and created again"):
            two_tables.replicate(tables=("t", "u"))
    two_tables.replicate(tables=("t", "u"), without_copy=("u",))


@pytest.mark.parametrize(
    ("statements", "reason", "tables"),
    [
        (("DROP TABLE u", "ADD TABLE u"), "removed it from the publication and added it again", "public.u"),
        (("SET (publish = 'insert')",), "altered the publication's operations", "public.t,public.u"),
        (
            ("SET (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')"),
            "altered the publication's operations",
            "public.t,public.u",
        ),
        (("DROP TABLE u",), "removed it from the publication", "public.u"),
        (("SET TABLE t, u WHERE (id > 0)",), "changed its row filter or its columns", "public.u"),
    ],
)
def test_a_publication_that_somebody_altered_stops_every_start_until_somebody_decides(
    two_tables: Group, statements: tuple[str, ...], reason: str, tables: str
) -> None:
    for statement in statements:
        two_tables.source.execute(f"ALTER PUBLICATION {two_tables.names.publication} {statement}")
    since = membership(two_tables).seen_lsn
    for _ in range(3):
        with pytest.raises(TerminalError, match=f"changes of {tables} since {since} .* may be missing .*{reason}") as stopped:
            two_tables.replicate(tables=("t", "u"))
        assert f"or start once with --without-copy {tables} if nothing is missing" in stopped.value.remedy
    two_tables.replicate(tables=("t", "u"), without_copy=("*",))
    two_tables.replicate(tables=("t", "u"))
    assert two_tables.source.execute("SELECT count(*) FROM pg_publication_tables") == [(2,)]


def test_operations_that_the_configuration_asks_for_now_excuse_no_others(two_tables: Group) -> None:
    two_tables.source.execute(f"ALTER PUBLICATION {two_tables.names.publication} SET (publish = 'insert')")
    with pytest.raises(TerminalError, match="altered the publication's operations"):
        two_tables.replicate(tables=("t", "u"), publish=("insert", "update"))


def test_a_table_that_is_asked_for_by_its_name_and_whose_updates_would_fail_is_refused(replication: Group) -> None:
    """One that only a pattern matches is left out."""
    replication.replicate(tables=("t",))
    replication.source.execute("CREATE TABLE keyless (v text)")
    replication.replicate(tables=("*",))
    with pytest.raises(TerminalError, match="REPLICA IDENTITY"):
        replication.replicate(tables=("t", "keyless"), without_copy=("keyless",))


async def test_a_record_keeps_the_newest_of_what_people_are_told(nats_server: NatsServer, group: str) -> None:
    """And the first of the tables that nobody follows, which are in order."""
    breaks = tuple(Break(oid, "public", f"t{oid}", "0/10", "", "it left") for oid in range(MOST_BREAKS + 1))
    names = tuple(f"public.t{number}" for number in range(MOST_BREAKS + 1))
    told = Membership("shop", 1, "1", ("insert",), True, (), "0/20", "", left=breaks, partition_changes=breaks, unpublished=names)
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.make(1)
        await store_membership(bucket, told)
        kept = replace(told, left=breaks[1:], partition_changes=breaks[1:], unpublished=names[:-1])
        assert await load_membership(bucket) == kept


def test_an_alteration_beside_a_running_replicator_stops_it_within_a_look(two_tables: Group, nats_server: NatsServer) -> None:
    with watching(two_tables, nats_server, tables="t,u") as replicator:
        two_tables.source.execute(f"ALTER PUBLICATION {two_tables.names.publication} DROP TABLE u")
        two_tables.source.execute("INSERT INTO u VALUES (1, 'unseen')")
        two_tables.source.execute(f"ALTER PUBLICATION {two_tables.names.publication} ADD TABLE u")
        assert replicator.wait() == 70
        assert "changes of public.u since" in replicator.log()
        assert "MISSING  changes of public.u" in shown(two_tables, nats_server)
        replicator.start()
        assert replicator.wait() == 70


def test_what_somebody_added_to_the_group_s_own_publication_is_taken_out_and_never_followed(replication: Group) -> None:
    replication.replicate()
    name, source = replication.names.publication, replication.source
    source.execute(f"CREATE SCHEMA o CREATE TABLE x (a int); ALTER PUBLICATION {name} ADD TABLES IN SCHEMA o")
    source.execute("INSERT INTO o.x VALUES (1); INSERT INTO t VALUES (1, 'a')")
    replication.replicate()
    assert replication.audit().rows == {"public.t insert": 1}
    assert source.execute("SELECT tablename::text FROM pg_publication_tables") == [("t",)]


def test_a_table_that_is_dropped_or_made_again_beside_a_running_replicator_is_reported(
    two_tables: Group, nats_server: NatsServer
) -> None:
    with watching(two_tables, nats_server, tables="t,u") as replicator:
        two_tables.source.execute("DROP TABLE u")
        replicator.wait_for_log("it was dropped at the source")
        two_tables.source.execute("BEGIN; DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY); COMMIT")
        replicator.wait_for_log("dropped and created again at the source")
        wait_for_a_look(two_tables)
        assert replicator.is_running
        assert replicator.log().count("public.u") == 1
    assert "public.t is not replicated since" in shown(two_tables, nats_server)


def test_new_tables_of_a_whole_schema_are_reported_once_beside_a_running_replicator(
    replication: Group, nats_server: NatsServer
) -> None:
    with watching(replication, nats_server) as replicator:
        replication.source.execute("CREATE TABLE w (id int PRIMARY KEY)")
        replicator.wait_for_log("tables of a whole schema or a pattern are not replicated")
        wait_for_a_look(replication)
        replication.source.execute("ALTER TABLE t RENAME TO t2")
        replicator.wait_for_log("a table was renamed at the source")
        assert replicator.log().count("are not replicated") == 1


def test_partitions_that_come_and_go_by_themselves_are_reported(replication: Group, nats_server: NatsServer) -> None:
    source = replication.source
    source.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for n in range(4):
        source.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n}0) TO ({n + 1}0)")
    source.execute("CREATE TABLE filled (id int PRIMARY KEY); INSERT INTO filled VALUES (95)")
    with watching(replication, nats_server, tables="p") as replicator:
        assert "of single partitions" in replicator.log()
        source.execute("CREATE TABLE born PARTITION OF p FOR VALUES FROM (50) TO (60)")
        source.execute("ALTER TABLE p DETACH PARTITION p0")
        source.execute("DROP TABLE p1")
        replicator.wait_for_log("partition public.p1 was detached or dropped")
        source.execute("ALTER TABLE p ATTACH PARTITION filled FOR VALUES FROM (90) TO (100)")
        replicator.wait_for_log("table public.filled was attached")
        source.execute("ALTER TABLE p DETACH PARTITION p2")
        source.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (20) TO (30)")
        replicator.wait_for_log("partition public.p2 was detached")
        assert "public.p0 was detached or dropped" in replicator.log()
        assert "public.born" not in replicator.log()
        replicator.terminate()
        assert replicator.wait() == 0
    source.execute("DROP TABLE p3")
    replication.replicate(tables=("p",))
    text = shown(replication, nats_server)
    assert "public.p: partition public.p1 was detached or dropped" in text
    assert "public.p: partition public.p3 was detached or dropped" in text
    replication.replicate(tables=("p",), without_copy=("p",))
    assert "detached" not in shown(replication, nats_server)


def test_a_schema_named_pgsluice_is_refused(replication: Group) -> None:
    replication.source.execute("CREATE SCHEMA pgsluice; CREATE TABLE pgsluice.applied (id int PRIMARY KEY)")
    for pattern in ("pgsluice.applied", "pgsluice.*"):
        with pytest.raises(UsageError, match="tables of schema pgsluice cannot be replicated"):
            replication.replicate(tables=(pattern,))


def test_a_group_of_an_earlier_version_takes_its_publication_as_it_is(two_tables: Group) -> None:
    two_tables.with_broker(lambda _, bucket: bucket.delete("publication"))
    two_tables.replicate(tables=("t", "u"))
    assert {member.table for member in membership(two_tables).members} == {"t", "u"}


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_alteration_of_ours_that_a_kill_interrupted_is_not_taken_for_somebody_else_s(
    two_tables: Group, is_committed: bool
) -> None:
    before = membership(two_tables)
    wanted = {"tables": ("t",), "publish": ("insert",)}
    if is_committed:
        two_tables.replicate(**wanted)
    [(xid,)] = two_tables.source.execute("SELECT xmin::text FROM pg_publication")
    announced = replace(before, making=Making(xid if is_committed else "7", (before.members[0].oid,)))
    two_tables.with_broker(lambda _, bucket: store_membership(bucket, announced))
    if is_committed:
        with pytest.raises(TerminalError, match=rf"public\.u was not replicated from {before.seen_lsn}"):
            two_tables.replicate(tables=("t", "u"), publish=("insert",))
    else:
        two_tables.replicate(tables=("t", "u"))
    two_tables.replicate(**wanted)
    assert [entry.table for entry in membership(two_tables).left] == ["u"]
    assert membership(two_tables).making is None
