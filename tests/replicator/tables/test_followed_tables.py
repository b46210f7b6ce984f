"""Which tables a running group follows: by a configuration that is read again, by patterns, by DDL, by who they are."""

from __future__ import annotations

import pytest

from pgsluice.shared.broker.ledger import Phase
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until


def test_a_hang_up_has_the_configuration_read_again_and_its_tables_followed(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u")
    group.create("u", 3)
    group.create("w", 3)
    with group.running() as process:
        group.wait_for_copy("u")
        group.reconfigure(tables="t,w", retention="48h")
        assert group.wait_for_copy("w").rows == 3
        group.wait_for_table("u", lambda record: record.phase is Phase.LEFT, "the end")
        assert group.published() == {"t", "w"}
        assert "options were changed that need a restart  options=retention" in process.log()
        process.config_path.write_text("tables: [")
        group.process.signal_all(1)
        process.wait_for_log("the configuration cannot be read; nothing is changed")
        group.reconfigure(tables="t,w,nowhere")
        process.wait_for_log("table 'public.nowhere' does not exist in the source")
        group.insert("w", 4, 5)
        assert group.read("w") == group.at_source("w")
        assert group.published() == {"t", "w"}


@pytest.mark.parametrize("captures", [True, False], ids=["with track-ddl", "without"])
def test_a_table_that_a_pattern_matches_joins_by_itself_with_its_rows(make_group: MakeGroup, captures: bool) -> None:
    group = make_group(tables="t,order_*", track_ddl=captures, check_interval="60s" if captures else "1s")
    group.create("order_1", 3)
    with group.running() as process:
        group.wait_for_copy("order_1")
        group.source.execute("CREATE TABLE order_keyless (id bigint, v text)")
        group.source.execute(
            "BEGIN; CREATE TABLE order_2 (id bigint PRIMARY KEY, v text); INSERT INTO order_2 VALUES (1, 'first'); COMMIT"
        )
        group.insert("order_2", 2, 9)
        group.wait_for_copy("order_2")
        group.insert("order_2", 10, 12)
        assert group.read("order_2") == group.at_source("order_2")
        process.wait_for_log("without a primary key or replica identity: public.order_keyless")
        group.source.execute("DROP TABLE order_2")
        group.wait_for_table("order_2", lambda record: record.phase is Phase.LEFT, "the end")
        assert "it was dropped at the source" in process.log()
        group.source.execute("ALTER TABLE order_keyless ADD PRIMARY KEY (id)")
        if not captures:
            group.wait_for_copy("order_keyless")
    with group.running():
        assert group.published() == {"t", "order_1", "order_keyless"}


def test_a_table_that_is_made_again_is_copied_into_an_emptied_one(make_group: MakeGroup) -> None:
    group = make_group(tables="t,u")
    group.create("u", 3)
    with group.running():
        oid = group.wait_for_copy("u").oid
        group.source.execute(
            "BEGIN; DROP TABLE u; CREATE TABLE u (id bigint PRIMARY KEY, v text); INSERT INTO u VALUES (7, 'new'); COMMIT"
        )
        record = group.wait_for_copy("u", attempt=2)
        assert record.oid != oid
        assert group.read("u") == group.at_source("u")


def test_a_table_that_was_renamed_or_moved_is_kept_by_its_oid_over_a_restart(make_group: MakeGroup) -> None:
    group = make_group(tables="t,sales.*,order_*")
    group.source.execute("CREATE SCHEMA sales; CREATE SCHEMA archive")
    group.create("sales.moved", 3)
    group.create("order_1", 3)
    group.create("sales.stays", 3)
    with group.running() as process:
        for name in ("moved", "order_1", "stays"):
            group.wait_for_copy(name)
        group.source.execute("ALTER TABLE sales.moved SET SCHEMA archive; ALTER TABLE order_1 RENAME TO former")
        process.wait_for_log("a table was renamed at the source")
        group.source.execute("INSERT INTO archive.moved VALUES (4, 'moved')")
    for _ in range(2):
        with group.running() as process:
            assert group.published() == {"t", "moved", "former", "stays"}
            assert "it is kept, by its OID  was=sales.moved now=archive.moved" in process.log()
            group.source.execute("INSERT INTO former SELECT max(id) + 1, 'renamed' FROM former")
    listed = group.listed()
    assert listed["archive.moved"]["origin"] == "renamed, was sales.moved"
    assert {table["attempt"] for table in listed.values()} == {1}
    with group.running():
        group.ordered("remove", "archive.moved")
    with group.running():
        assert group.published() == {"t", "former", "stays"}
        group.create("order_1", 2)
        wait_until(lambda: group.published() == {"t", "order_1", "stays"}, what="the name's new table")
        assert group.wait_for_copy("order_1").rows == 2


def test_a_writer_that_is_open_while_its_table_joins_loses_no_row_on_a_server_before_spring_2025(
    group: str, nats_server: NatsServer
) -> None:
    with PostgresServer(version=16) as server:
        source = server.create_database("source")
        joining = StreamingGroup(group, source, nats_server)
        try:
            check_open_writer(joining, source)
        finally:
            joining.close()


def check_open_writer(group: StreamingGroup, source: Database) -> None:
    group.create("w", 2)
    with group.running() as process, source.connect(autocommit=False) as writer:
        group.wait_for_copy("t")
        writer.execute("INSERT INTO w VALUES (10, 'before')")
        group.order("add", "--no-wait", "w")
        process.wait_for_log("a table that joins or leaves is in use")
        writer.execute("INSERT INTO w VALUES (11, 'meanwhile')")
        source.execute("INSERT INTO w VALUES (12, 'somebody else')")
        writer.commit()
        wait_until(lambda: "w" in group.published(), what="the publication")
        source.execute("INSERT INTO w VALUES (13, 'after')")
        group.wait_for_copy("w")
        source.execute("INSERT INTO w VALUES (14, 'later')")
        assert group.read("w") == group.at_source("w")
