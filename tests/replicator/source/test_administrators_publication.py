"""A publication that an administrator made is used as it is, by a role that owns nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgsluice.console.drop import run as drop
from pgsluice.replicator.replicator import run
from pgsluice.shared.config.settings import DropSettings, PostgresSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames
from tests.replicated_group import Group
from tests.replicator.definitions.captured import install


@pytest.fixture
def reader(replication: Group) -> Iterator[PostgresSettings]:
    """A role with REPLICATION and SELECT on what is there, and nothing else."""
    role = f"reader_{uuid.uuid4().hex[:8]}"
    source = replication.source
    source.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    source.execute("CREATE SCHEMA sales; CREATE TABLE sales.orders (id int PRIMARY KEY)")
    source.execute(f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON ALL TABLES IN SCHEMA public, sales TO {role}")
    source.execute(f"GRANT USAGE ON SCHEMA sales TO {role}")
    yield replace(source.settings, user=role)
    source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def replicate(replication: Group, reader: PostgresSettings, **changed: object) -> None:
    run(replace(replication.settings(**changed), source=reader))


def test_one_of_the_group_s_name_with_the_tables_is_enough(replication: Group, reader: PostgresSettings) -> None:
    replication.source.execute(f"CREATE PUBLICATION {replication.names.publication} FOR TABLE t")
    before = replication.source.execute("SELECT xmin::text FROM pg_publication")
    replicate(replication, reader, tables=("t",))
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    replicate(replication, reader, tables=("t",))
    assert replication.audit().rows == {"public.t insert": 1}
    assert replication.source.execute("SELECT xmin::text FROM pg_publication") == before


@pytest.mark.parametrize(
    ("definition", "tables"),
    [
        ("FOR TABLE t, p WITH (publish_via_partition_root)", ()),
        ("FOR TABLE t, p WITH (publish_via_partition_root)", ("p", "t")),
        ("FOR ALL TABLES WITH (publish_via_partition_root)", ()),
        ("FOR ALL TABLES WITH (publish_via_partition_root)", ("public.*", "sales.*")),
        ("FOR TABLES IN SCHEMA public WITH (publish_via_partition_root)", ("public.*",)),
        ("FOR TABLES IN SCHEMA public, TABLE sales.orders WITH (publish_via_partition_root)", ()),
    ],
)
def test_one_that_is_named_is_used_whatever_it_covers(
    replication: Group, reader: PostgresSettings, definition: str, tables: tuple[str, ...]
) -> None:
    replication.source.execute(f'CREATE PUBLICATION "Shop" {definition}')
    replicate(replication, reader, publication="Shop", tables=tables)
    replication.source.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO p VALUES (1)")
    replicate(replication, reader, publication="Shop", tables=tables)
    assert replication.audit().rows == {"public.t insert": 1, "public.p insert": 1}
    assert replication.source.execute("SELECT pubname::text FROM pg_publication") == [("Shop",)]


def test_tables_made_in_what_it_covers_are_replicated_from_their_first_row(replication: Group, reader: PostgresSettings) -> None:
    replication.source.execute('CREATE PUBLICATION "Shop" FOR ALL TABLES WITH (publish_via_partition_root)')
    replicate(replication, reader, publication="Shop")
    replication.source.execute("CREATE TABLE newborn (id int PRIMARY KEY); INSERT INTO newborn VALUES (1)")
    replicate(replication, reader, publication="Shop")
    replicate(replication, reader, publication="Shop")
    assert replication.audit().rows == {"public.newborn insert": 1}


def test_what_captures_definitions_is_not_among_the_tables_of_one_that_is_of_all(
    replication: Group, reader: PostgresSettings
) -> None:
    replication.source.execute('CREATE PUBLICATION "Shop" FOR ALL TABLES WITH (publish_via_partition_root)')
    install(replication.source, GroupNames(replication.name, "Shop"), "public.*")
    install(replication.source, GroupNames(replication.name + "-2"), "public.*")
    for tables in ((), ("public.*", "sales.*")):
        replicate(replication, reader, publication="Shop", tables=tables)
    assert replication.audit().rows == {}


def test_one_that_lacks_a_table_is_refused_with_the_statement_that_mends_it(replication: Group, reader: PostgresSettings) -> None:
    replication.source.execute("CREATE PUBLICATION shop FOR TABLE t")
    with pytest.raises(TerminalError, match=r"does not publish public\.other") as raised:
        replicate(replication, reader, publication="shop", tables=("t", "other"))
    assert 'ADD TABLE ONLY "public"."other"' in raised.value.remedy
    replication.source.execute(raised.value.remedy.removeprefix("let its owner run: "))
    replicate(replication, reader, publication="shop", tables=("t", "other"))


@pytest.mark.parametrize(
    "definition",
    [
        "FOR TABLE t, other, sales.orders",
        "FOR TABLE t WITH (publish = 'insert')",
        "FOR TABLE t, p, p1 (id) WITH (publish_via_partition_root)",
        "FOR ALL TABLES WITH (publish_via_partition_root)",
    ],
)
def test_what_it_has_beside_what_is_asked_for_is_left_out_and_its_operations_are_its_own(
    replication: Group, reader: PostgresSettings, definition: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also partitions beside their root, and a column list of theirs."""
    source = replication.source
    source.execute(f"CREATE PUBLICATION shop {definition}")
    tables = ("t", "p") if "p1" in definition else ("t",)
    replicate(replication, reader, publication="shop", tables=tables)
    source.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO other VALUES (1); INSERT INTO sales.orders VALUES (1)")
    source.execute("INSERT INTO p VALUES (1)")
    caplog.set_level("INFO")
    replicate(replication, reader, publication="shop", tables=tables)
    expected = {"public.t insert": 1} | ({"public.p insert": 1} if "p" in tables else {})
    assert replication.audit().rows == expected
    left_out = "the publication has a table that the group does not ask for; it is left out"
    assert (left_out in caplog.text) == ("other" in definition or "ALL" in definition)


def test_partitions_under_their_own_names_do_not_fit(replication: Group, reader: PostgresSettings) -> None:
    replication.source.execute("CREATE PUBLICATION shop FOR TABLE p")
    with pytest.raises(TerminalError, match="partitions under their own names"):
        replicate(replication, reader, publication="shop")


def test_one_that_is_not_there_is_asked_for_with_its_statement(replication: Group, reader: PostgresSettings) -> None:
    for publication in ("shop", ""):
        with pytest.raises(TerminalError) as raised:
            replicate(replication, reader, publication=publication, tables=("t",))
        name = publication or replication.names.publication
        assert f'CREATE PUBLICATION "{name}" FOR TABLE ONLY "public"."t" WITH (publish = ' in str(raised.value)
    statement = raised.value.fact[raised.value.fact.index("CREATE PUBLICATION") : -1]
    replication.source.execute(statement)
    replicate(replication, reader, tables=("t",))


def test_its_owner_adds_and_removes_tables_as_the_configuration_changes(replication: Group, reader: PostgresSettings) -> None:
    source = replication.source
    source.execute("CREATE PUBLICATION shop FOR TABLE t")
    replicate(replication, reader, publication="shop", tables=("t",))
    source.execute("ALTER PUBLICATION shop ADD TABLE other")
    with pytest.raises(UsageError, match=r"public\.other joins a group that streams already"):
        replicate(replication, reader, publication="shop", tables=("t", "other"))
    replicate(replication, reader, publication="shop", tables=("t", "other"), without_copy=("other",))
    source.execute("ALTER PUBLICATION shop DROP TABLE t")
    replicate(replication, reader, publication="shop", tables=("other",))
    source.execute("ALTER PUBLICATION shop ADD TABLE t")
    with pytest.raises(TerminalError, match=r"table public\.t was not replicated from"):
        replicate(replication, reader, publication="shop", tables=("t", "other"))


def test_one_that_was_altered_and_altered_back_stops_the_start(replication: Group, reader: PostgresSettings) -> None:
    replication.source.execute("CREATE PUBLICATION shop FOR TABLE t")
    replicate(replication, reader, publication="shop")
    replication.source.execute("ALTER PUBLICATION shop DROP TABLE t")
    replication.source.execute("ALTER PUBLICATION shop ADD TABLE t")
    for _ in range(2):
        with pytest.raises(TerminalError, match=r"changes of public\.t since .* may be missing"):
            replicate(replication, reader, publication="shop")


def test_tables_of_ours_and_of_extensions_are_left_out(replication: Group, reader: PostgresSettings) -> None:
    """The source is a target too, and its target has such a table of its own."""
    source = replication.source
    source.execute("CREATE SCHEMA pgsluice; CREATE TABLE pgsluice.applied (worker text PRIMARY KEY)")
    source.execute("CREATE TABLE owned (id int PRIMARY KEY); ALTER EXTENSION plpgsql ADD TABLE owned")
    source.execute("CREATE PUBLICATION shop FOR ALL TABLES WITH (publish_via_partition_root)")
    for tables in ((), ("public.*",)):
        replicate(replication, reader, publication="shop", tables=tables)
        source.execute("INSERT INTO pgsluice.applied SELECT 'w' || count(*) FROM t; INSERT INTO owned SELECT count(*) FROM t")
        source.execute("INSERT INTO t SELECT count(*), 'a' FROM t")
    replicate(replication, reader, publication="shop")
    replicate(replication, reader, publication="shop", tables=("t", "owned"), without_copy=("owned",))
    source.execute("INSERT INTO owned VALUES (7)")
    replicate(replication, reader, publication="shop", tables=("t", "owned"))
    assert replication.audit().rows == {"public.t insert": 2, "public.owned insert": 1}


def test_a_group_s_own_is_not_taken_for_an_administrator_s(replication: Group) -> None:
    replication.replicate()
    other = Group(replication.name + "x", replication.source, replication.nats)
    with pytest.raises(UsageError, match=f"belongs to group '{replication.name}'"):
        other.replicate(publication=replication.names.publication)


def test_drop_leaves_it_where_it_is(replication: Group, reader: PostgresSettings) -> None:
    replication.source.execute(f"CREATE PUBLICATION {replication.names.publication} FOR TABLE t")
    replicate(replication, reader, tables=("t",))
    settings = replication.settings()
    drop(DropSettings(group=replication.name, source=reader, nats=replication.nats, log=settings.log))
    assert replication.source.execute("SELECT count(*) FROM pg_publication") == [(1,)]
    assert replication.source.execute("SELECT FROM pg_replication_slots WHERE database = current_database()") == []
