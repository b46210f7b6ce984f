"""Which tables a running group follows: by a configuration that is read again, by patterns, by DDL, by who they are."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from pgsluice.shared.broker.ledger import Phase, TableRecord
from tests.replicator.tables.conftest import MakeGroup, group_maker
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.servers import Database, NatsServer, PostgresServer
from tests.waiting import wait_until

PATTERNS = "t,remade,order_*,sales.*"


@pytest.fixture(scope="module")
def following(make_shared_group: MakeGroup) -> Iterator[StreamingGroup]:
    """Without track-ddl: it looks for itself."""
    group = make_shared_group(tables=f"u,{PATTERNS}")
    group.source.execute("CREATE SCHEMA sales; CREATE SCHEMA archive")
    initial = ("u", "remade", "order_1", "order_named", "sales.moved", "sales.stays")
    for table in (*initial, "w"):
        group.create(table, 3)
    with group.running():
        for table in initial:
            group.wait_for_copy(table.rpartition(".")[2])
        yield group


@pytest.fixture(scope="module")
def after_changes(following: StreamingGroup) -> StreamingGroup:
    """All at once: its configuration names ``w`` instead of ``u``, ``remade`` is made again, ``order_2`` comes, and
    ``order_keyless``, which gets a key when it was refused."""
    group = following
    group.source.execute("CREATE TABLE order_keyless (id bigint, v text)")
    group.process.wait_for_log("without a primary key or replica identity: public.order_keyless")
    group.reconfigure(tables=f"w,{PATTERNS}", retention="48h")
    group.source.execute(
        "BEGIN; DROP TABLE remade; CREATE TABLE remade (id bigint PRIMARY KEY, v text);"
        " INSERT INTO remade VALUES (7, 'new'); COMMIT"
    )
    group.source.execute(
        "BEGIN; CREATE TABLE order_2 (id bigint PRIMARY KEY, v text); INSERT INTO order_2 VALUES (1, 'first'); COMMIT"
    )
    group.source.execute("ALTER TABLE order_keyless ADD PRIMARY KEY (id)")
    group.insert("order_2", 2, 9)
    for table in ("w", "order_2", "order_keyless"):
        group.wait_for_copy(table)
    group.wait_for_copy("remade", attempt=2)
    return group


def test_a_hang_up_has_the_configuration_read_again_and_its_tables_followed(after_changes: StreamingGroup) -> None:
    group, process = after_changes, after_changes.process
    assert group.wait_for_copy("w").rows == 3
    group.wait_for_table("u", lambda record: record.phase is Phase.LEFT, "the end")
    published = group.published()
    assert published & {"t", "u", "w"} == {"t", "w"}
    assert "options were changed that need a restart  options=retention" in process.log()
    before = process.config_path.read_text()
    process.config_path.write_text("tables: [")
    process.signal_all(1)
    process.wait_for_log("the configuration cannot be read; nothing is changed")
    group.reconfigure(tables=f"w,nowhere,{PATTERNS}")
    process.wait_for_log("table 'public.nowhere' does not exist in the source")
    group.insert("w", 4, 5)
    assert group.read("w") == group.at_source("w")
    assert group.published() == published
    process.config_path.write_text(before)


def test_a_table_that_a_pattern_matches_joins_by_itself_with_its_rows(after_changes: StreamingGroup) -> None:
    """Told by the group's own look; with track-ddl, see ``test_copied_again``."""
    group = after_changes
    group.insert("order_2", 10, 12)
    assert group.read("order_2") == group.at_source("order_2")
    group.source.execute("DROP TABLE order_2")
    group.wait_for_table("order_2", lambda record: record.phase is Phase.LEFT, "the end")
    assert "it was dropped at the source" in group.process.log()
    group.restart()
    assert {"t", "order_1", "order_keyless"} <= group.published()


def test_a_hang_up_while_a_table_waits_to_join_is_answered_too(make_group: MakeGroup) -> None:
    group = make_group(tables="t")
    group.create("u", 3)
    with group.running() as process:
        with group.source.connect(autocommit=False) as writer:
            writer.execute("UPDATE u SET v = 'open'")
            group.reconfigure(tables="t,u")
            process.wait_for_log("a table that joins or leaves is in use, trying again")
            group.reconfigure(tables="t,u,nowhere")
            process.wait_for_log("the configuration was read again  tables=t,u,nowhere")
            writer.commit()
        process.wait_for_log("table 'public.nowhere' does not exist in the source")


def test_spark_starts_for_a_table_that_joins_only_where_there_is_much_to_copy(make_group: MakeGroup) -> None:
    group = make_group(tables="t,order_*", copy_range_bytes="4MiB")
    group.create("order_first")
    with group.running() as process:
        process.wait_for_log("copy is finished")
        starts = process.log().count("starting Spark")
        for name, rows, expected in (("order_small", 20, starts), ("order_large", 10_000, starts + 1)):
            group.source.execute(
                f"BEGIN; CREATE TABLE {name} (id bigint PRIMARY KEY, v text);"
                f" INSERT INTO {name} SELECT n, repeat('v', 1000) FROM generate_series(1, {rows}) n; COMMIT"
            )
            group.wait_for_copy(name)
            assert process.log().count("starting Spark") == expected
            assert group.read(name) == group.at_source(name)


def by_oid(record: TableRecord) -> int:
    return record.oid


def test_a_table_that_is_made_again_is_copied_into_an_emptied_one(after_changes: StreamingGroup) -> None:
    *former, newest = sorted(
        (record for record in after_changes.ledger().tables.values() if record.table == "remade"), key=by_oid
    )
    assert newest.attempt == 2
    assert {record.phase for record in former} <= {Phase.LEFT}, "or it is forgotten"
    assert after_changes.read("remade") == after_changes.at_source("remade")


def test_a_table_that_was_renamed_or_moved_is_kept_by_its_oid_over_a_restart(following: StreamingGroup) -> None:
    group, process = following, following.process
    names = {"t", "moved", "order_named", "former", "stays"}
    group.source.execute("ALTER TABLE sales.moved SET SCHEMA archive; ALTER TABLE order_named RENAME TO former")
    process.wait_for_log("a table was renamed at the source")
    group.source.execute("INSERT INTO archive.moved VALUES (4, 'moved')")
    for _ in range(2):
        said = len(process.log())
        group.restart()
        assert group.published() & names == {"t", "moved", "former", "stays"}
        assert "it is kept, by its OID  was=sales.moved now=archive.moved" in process.log()[said:]
        group.source.execute("INSERT INTO former SELECT max(id) + 1, 'renamed' FROM former")
    listed = group.listed()
    assert listed["archive.moved"].origin == "renamed, was sales.moved"
    assert {listed[table].attempt for table in ("public.t", "archive.moved", "public.former", "sales.stays")} == {1}
    group.ordered("remove", "archive.moved")
    group.restart()
    assert group.published() & names == {"t", "former", "stays"}
    group.create("order_named", 2)
    wait_until(lambda: group.published() & names == {"t", "order_named", "stays"}, what="the name's new table")
    assert group.wait_for_table("order_named", lambda record: record.phase is Phase.FINISHED_COPY, "the copy").rows == 2


def test_a_writer_that_is_open_while_its_table_joins_loses_no_row_on_a_server_before_spring_2025(
    group: str, postgres_of: Callable[[int], PostgresServer], nats_server: NatsServer
) -> None:
    source = postgres_of(16).create_database(f"source_{uuid.uuid4().hex[:12]}")
    with group_maker(group, source, nats_server) as make:
        check_open_writer(make(), source)
    source.drop()


def check_open_writer(group: StreamingGroup, source: Database) -> None:
    """The copy of ``t``, which begins meanwhile, waits for the writer too: one start of Spark copies both tables."""
    group.create("w", 2)
    with group.running() as process, source.connect(autocommit=False) as writer:
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
