"""Which tables are taken, and which are refused before they are published."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import check_replica_identity, parse_pattern, select_tables
from pgsluice.shared.errors import TerminalError, UsageError
from tests.replicated_group import ALL_OPERATIONS, Group
from tests.servers import Database, PostgresServer


def select(database: Database, *patterns: str, schema: str = "public") -> list[str]:
    async def call() -> list[str]:
        source = await Source.connect(database.settings)
        try:
            tables = await select_tables(source, patterns, schema)
            check_replica_identity(tables, ALL_OPERATIONS)
            return [table.qualified_name for table in tables]
        finally:
            await source.close()

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [
        ("orders", "public", "orders"),
        ("sales.orders", "sales", "orders"),
        ("sales.*", "sales", "*"),
        ('"Sales 2.0"."odd ""name"""', "Sales 2.0", 'odd "name"'),
        ("größe-?", "public", "größe-?"),
    ],
)
def test_a_pattern_without_a_schema_is_in_the_default_one(text: str, schema: str, table: str) -> None:
    pattern = parse_pattern(text, "public")
    assert (str(pattern.schema), str(pattern.name)) == (schema, table)


@pytest.mark.parametrize("text", ["", "a.b.c", '"open', "a.", ".b"])
def test_a_malformed_pattern_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a table"):
        parse_pattern(text, "public")


def test_without_patterns_every_publishable_table_of_the_schema_is_taken(source_database: Database) -> None:
    source_database.execute("CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE a (id int PRIMARY KEY)")
    source_database.execute("CREATE UNLOGGED TABLE u (id int PRIMARY KEY); CREATE VIEW v AS SELECT * FROM a")
    source_database.execute("CREATE SCHEMA other; CREATE TABLE other.c (id int PRIMARY KEY)")
    assert select(source_database) == ["public.a", "public.b"]
    assert select(source_database, "other.*", "b") == ["other.c", "public.b"]


def test_a_pattern_takes_every_publishable_table_that_it_matches(source_database: Database) -> None:
    source_database.execute("CREATE TABLE order_a (id int PRIMARY KEY); CREATE TABLE order_b (id int PRIMARY KEY)")
    source_database.execute('CREATE TABLE ordera (id int PRIMARY KEY); CREATE TABLE "order_*" (id int PRIMARY KEY)')
    source_database.execute("CREATE UNLOGGED TABLE order_u (id int PRIMARY KEY); CREATE VIEW order_v AS SELECT 1")
    source_database.execute("CREATE SCHEMA sales; CREATE TABLE sales.order_c (id int PRIMARY KEY)")
    assert select(source_database, "order_*") == ["public.order_*", "public.order_a", "public.order_b"]
    assert select(source_database, '"order_*"') == ["public.order_*"]
    assert select(source_database, "*.order_c", "sal*.*") == ["sales.order_c"]
    assert select(source_database, "*.*c") == ["sales.order_c"]


def test_partitions_are_taken_through_their_root(source_database: Database) -> None:
    source_database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source_database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (10)")
    assert select(source_database) == ["public.p"]


@pytest.mark.parametrize(
    ("statement", "pattern", "what"),
    [
        ("CREATE UNLOGGED TABLE x (id int PRIMARY KEY)", "x", "is unlogged"),
        ("CREATE VIEW x AS SELECT 1", "x", "is a view"),
        ("CREATE SEQUENCE x", "x", "is a sequence"),
        ("SELECT 1", "x", "table 'public.x' does not exist"),
        ("SELECT 1", "x.y", "schema 'x' does not exist"),
        ("SELECT 1", "public.*", "has no tables"),
        ("SELECT 1", "x*", r"no table of the source is called 'public.x\*'"),
        ("SELECT 1", "x*.y", r"schema 'x\*' does not exist"),
        ("SELECT 1", "pg_catalog.pg_class", "is a system table"),
    ],
)
def test_what_cannot_be_published_is_refused(source_database: Database, statement: str, pattern: str, what: str) -> None:
    source_database.execute(statement)
    with pytest.raises(UsageError, match=what):
        select(source_database, pattern)


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE x (id int)",
        "CREATE TABLE x (id int PRIMARY KEY); ALTER TABLE x REPLICA IDENTITY NOTHING",
        "CREATE TABLE x (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE x (id int) PARTITION BY RANGE (id); ALTER TABLE x REPLICA IDENTITY FULL; "
        "CREATE TABLE x1 PARTITION OF x FOR VALUES FROM (1) TO (10)",
    ],
)
def test_a_table_whose_updates_would_fail_is_refused_before_it_is_published(replication: Group, definition: str) -> None:
    replication.source.execute(definition)
    with pytest.raises(TerminalError, match=r"public\.x.*REPLICA IDENTITY (FULL|DEFAULT)"):
        replication.replicate()
    assert replication.source.execute("SELECT FROM pg_publication") == []
    replication.replicate(publish=("insert", "truncate"))


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE x (id int); ALTER TABLE x REPLICA IDENTITY FULL",
        "CREATE TABLE x (id int NOT NULL UNIQUE); ALTER TABLE x REPLICA IDENTITY USING INDEX x_id_key",
        "CREATE TABLE x (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE x1 PARTITION OF x FOR VALUES FROM (1) TO (10)",
        "CREATE TABLE x (id int PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.has_no_key () INHERITS (x)",
    ],
)
def test_a_table_with_any_usable_replica_identity_is_taken(source_database: Database, definition: str) -> None:
    source_database.execute(definition)
    assert select(source_database) == ["public.x"]


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE x (a int, g int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)",
        "CREATE TABLE x (a int, b int DEFAULT 1, g int GENERATED ALWAYS AS (b * 2) STORED, PRIMARY KEY (a, g))",
        "CREATE TABLE x (a int PRIMARY KEY, g int GENERATED ALWAYS AS (a * 2) STORED NOT NULL UNIQUE);"
        "ALTER TABLE x REPLICA IDENTITY USING INDEX x_g_key",
        "CREATE TABLE x (a int, g int GENERATED ALWAYS AS (a * 2) STORED); ALTER TABLE x REPLICA IDENTITY FULL",
    ],
)
def test_a_replica_identity_that_is_not_published_is_refused_at_the_start(replication: Group, definition: str) -> None:
    """Once they were published, PostgreSQL 18 refused UPDATE of them."""
    replication.source.execute(definition)
    replication.source.execute("INSERT INTO x (a) VALUES (1)")
    with pytest.raises(TerminalError, match=r"replica identity of public\.x has generated columns"):
        replication.replicate()
    replication.source.execute("UPDATE x SET a = 2")
    replication.source.execute("DROP TABLE x; CREATE TABLE x (a int PRIMARY KEY, g int GENERATED ALWAYS AS (a * 2) STORED)")
    replication.replicate()


def test_before_postgresql_18_whole_old_rows_may_lack_generated_columns(postgres_of: Callable[[int], PostgresServer]) -> None:
    database = postgres_of(15).create_database(f"source_{uuid.uuid4().hex[:12]}")
    database.execute(
        "CREATE TABLE x (a int, b int, g int GENERATED ALWAYS AS (b * 2) STORED, PRIMARY KEY (a, g));"
        "ALTER TABLE x REPLICA IDENTITY FULL; CREATE TABLE y (a int, g int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)"
    )
    assert select(database, "x") == ["public.x"]
    with pytest.raises(TerminalError, match=r"replica identity of public\.y has generated columns"):
        select(database, "y")
    database.drop()


KEYED_BY_GENERATED = "CREATE TABLE x (a int, g int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)"
PARTITIONED_BY_GENERATED = """
CREATE TABLE x (gone int, a int, g int GENERATED ALWAYS AS (a * 2) STORED, b int, PRIMARY KEY (g, b)) PARTITION BY RANGE (b);
ALTER TABLE x DROP gone; CREATE TABLE x1 (g int GENERATED ALWAYS AS (a * 2) STORED NOT NULL, b int NOT NULL, a int);
ALTER TABLE x ATTACH PARTITION x1 FOR VALUES FROM (0) TO (10)
"""


@pytest.mark.parametrize(
    ("table", "published"),
    [
        (KEYED_BY_GENERATED, "x (a, g)"),
        (PARTITIONED_BY_GENERATED, "x (a, g, b)"),
        (KEYED_BY_GENERATED, "x WITH (publish_generated_columns = stored)"),
    ],
)
def test_a_generated_column_that_the_group_s_publication_sends_identifies_rows(
    replication: Group, table: str, published: str
) -> None:
    """Another publication's does not help: the application's UPDATE would fail once the group publishes the table without it."""
    source = replication.source
    options = "WITH (publish_via_partition_root = true)" if "WITH" not in published else ""
    source.execute(f"{table}; CREATE PUBLICATION shop FOR TABLE {published} {options}")
    with pytest.raises(
        TerminalError, match=r"the replica identity of public\.x1? has generated columns, which are not published"
    ):
        replication.replicate(tables=("x",))
    replication.replicate(publication="shop")
    source.execute("INSERT INTO x (a) VALUES (1)" if "b int" not in table else "INSERT INTO x (a, b) VALUES (1, 1)")
    source.execute("UPDATE x SET a = 2")
    replication.replicate(publication="shop")
    assert replication.audit().changes == 2
