"""What is copied of tables of every kind, by the catalog of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pgsluice.replicator.snapshot.export import SnapshotKeeper
from pgsluice.replicator.source.catalog import fold_partitions, published_oids, read_tables
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import select_tables
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table
from tests.replicator.copier import PAGE_BYTES, Copier
from tests.replicator.source.detaching import begin_detaching
from tests.servers import PostgresServer


def test_a_table_that_was_never_analysed_has_its_true_size(copier: Copier) -> None:
    copier.source.execute("CREATE TABLE t (a int) WITH (autovacuum_enabled = off)")
    copier.source.execute("INSERT INTO t SELECT generate_series(1, 10000)")
    [table] = copier.read("t")
    assert copier.source.execute("SELECT relpages FROM pg_class WHERE relname = 't'") == [(0,)]
    assert table.size_bytes == copier.source.execute("SELECT pg_relation_size('t')")[0][0] > PAGE_BYTES


def test_the_descriptor_has_keys_and_types_of_the_columns(copier: Copier) -> None:
    copier.source.execute("CREATE TYPE mood AS ENUM ('good')")
    copier.source.execute(
        'CREATE TABLE t (b numeric(10,2), a int NOT NULL GENERATED ALWAYS AS IDENTITY, "C" mood[], x varchar(7), '
        "PRIMARY KEY (x, a))"
    )
    [copied] = copier.read("t")
    columns = {column.name: column for column in copied.table.columns}
    assert [(c.name, c.type_name) for c in copied.table.columns] == [
        ("b", "numeric(10,2)"),
        ("a", "integer"),
        ("C", "public.mood[]"),
        ("x", "character varying(7)"),
    ]
    assert {name: column.primary_key_position for name, column in columns.items()} == {"b": None, "a": 2, "C": None, "x": 1}
    assert [name for name, column in columns.items() if column.identity_key] == ["a", "x"]
    assert columns["a"].identity == "a"
    assert columns["b"].typmod > 0
    assert not columns["b"].not_null


NOT_VALID = """
CREATE TABLE t (a int PRIMARY KEY, blank int, validated int, b bpchar, c "bit");
INSERT INTO t (a) VALUES (1);
ALTER TABLE t ADD CONSTRAINT blank NOT NULL blank NOT VALID, ADD CONSTRAINT validated NOT NULL validated NOT VALID;
UPDATE t SET validated = 1, blank = 1;
ALTER TABLE t VALIDATE CONSTRAINT validated;
"""


def test_not_null_counts_when_it_is_validated(copier: Copier) -> None:
    copier.source.execute(NOT_VALID)
    [copied] = copier.read("t")
    assert [column.name for column in copied.table.columns if column.not_null] == ["a", "validated"]
    assert [column.type_name for column in copied.table.columns[-2:]] == ["bpchar", '"bit"']


def test_a_nondeterministic_collation_is_told(copier: Copier, postgres_of: Callable[[int], PostgresServer]) -> None:
    """Only servers with ICU have such, as the system's own is."""
    source = postgres_of(15).create_database(copier.source.dbname)
    source.execute(
        "CREATE COLLATION folds (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        'CREATE TABLE t (a text COLLATE "C" PRIMARY KEY, word text COLLATE folds, plain text)'
    )
    [copied] = replace(copier, source=source).read("t")
    source.drop()
    assert {c.name: c.collation for c in copied.table.columns if c.collation} == {"word": "i und-u-ks-level2"}
    assert Table.decode(copied.table.encode()) == copied.table
    assert [len(column) for column in copied.table.encode()["columns"]] == [10, 11, 10]


@pytest.mark.parametrize(("identity", "keys"), [("FULL", ["a", "b"]), ("USING INDEX t_b", ["b"]), ("NOTHING", [])])
def test_identity_keys_follow_the_replica_identity(copier: Copier, identity: str, keys: list[str]) -> None:
    copier.source.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL); CREATE UNIQUE INDEX t_b ON t (b)")
    copier.source.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    [copied] = copier.read("t")
    assert [column.name for column in copied.table.columns if column.identity_key] == keys


def test_generated_and_dropped_columns_are_left_out(copier: Copier) -> None:
    copier.source.execute("CREATE TABLE t (a int, gone int, twice int GENERATED ALWAYS AS (a * 2) STORED, b text)")
    copier.source.execute("ALTER TABLE t DROP COLUMN gone")
    [copied] = copier.read("t")
    assert [column.name for column in copied.table.columns] == ["a", "b"]


def test_partitions_are_copied_under_their_root(copier: Copier) -> None:
    copier.source.execute(
        "CREATE TABLE t (a int, b text) PARTITION BY LIST (a);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2) PARTITION BY LIST (b);"
        "CREATE TABLE t2x (b text, a int); ALTER TABLE t2 ATTACH PARTITION t2x FOR VALUES IN ('x');"
        "CREATE TABLE empty (a int) PARTITION BY LIST (a)"
    )
    [root, empty] = sorted(copier.read("t", "empty"), key=lambda copied: -len(copied.relations))
    assert [relation.name for relation in root.relations] == ["t1", "t2x"]
    assert [column.name for column in root.table.columns] == ["a", "b"]
    assert empty.relations == ()


def test_a_partition_named_beside_its_root_is_not_copied_twice(copier: Copier) -> None:
    copier.source.execute(
        "CREATE TABLE t (a int, b int) PARTITION BY LIST (a);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1) PARTITION BY LIST (b);"
        "CREATE TABLE t1x PARTITION OF t1 FOR VALUES IN (1)"
    )

    async def folded(*patterns: str) -> list[str]:
        source = await Source.connect(copier.source.settings)
        try:
            return [table.name for table in await fold_partitions(source, await select_tables(source, patterns, "public"))]
        finally:
            await source.close()

    assert asyncio.run(folded("t", "t1", "t1x")) == ["t"]
    assert asyncio.run(folded("t1", "t1x")) == ["t1"]
    assert asyncio.run(folded("t1x")) == ["t1x"]


def test_an_inheritance_child_is_a_table_of_its_own(copier: Copier) -> None:
    copier.source.execute("CREATE TABLE parent (a int); CREATE TABLE child (b int) INHERITS (parent)")
    parent, child = sorted(copier.read("parent", "child"), key=lambda copied: len(copied.table.columns))
    assert [relation.name for relation in parent.relations] == ["parent"]
    assert [column.name for column in child.table.columns] == ["a", "b"]


def test_a_publication_s_row_filter_and_column_list_hold_for_the_copy(copier: Copier) -> None:
    copier.source.execute("CREATE TABLE t (id int PRIMARY KEY, kind text, secret text)")
    publication = copier.names.publication
    copier.source.execute(f"CREATE PUBLICATION \"{publication}\" FOR TABLE t (id, kind) WHERE (kind IN ('a', 'b'))")
    [copied] = copier.read("t")
    assert [column.name for column in copied.table.columns] == ["id", "kind"]
    assert copied.row_filter == "(kind = ANY (ARRAY['a'::text, 'b'::text]))"


_PUBLICATIONS = [
    "FOR TABLE t, root",
    "FOR TABLE t, root, part, leaf WITH (publish_via_partition_root = true)",
    "FOR TABLE part, leaf WITH (publish_via_partition_root = true)",
    "FOR TABLE ONLY parent",
    "FOR TABLE ONLY parent WITH (publish_via_partition_root = true)",
    "FOR ALL TABLES",
    "FOR ALL TABLES WITH (publish_via_partition_root = true)",
]
_PUBLICATIONS_SINCE_15 = [
    "FOR TABLES IN SCHEMA s",
    "FOR TABLES IN SCHEMA s WITH (publish_via_partition_root = true)",
    "FOR TABLES IN SCHEMA s, TABLE t WHERE (id > 3), root WITH (publish_via_partition_root = true)",
]


@pytest.mark.parametrize("version", [14, 15, 18])
def test_what_a_publication_publishes_is_found_as_the_server_finds_it(
    version: int, group: str, postgres_of: Callable[[int], PostgresServer]
) -> None:
    database, names = postgres_of(version).create_database(group.replace("-", "_")), GroupNames(group)
    database.execute(
        "CREATE SCHEMA s; CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE unlogged (id int);"
        "CREATE TABLE s.part PARTITION OF root FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);"
        "CREATE TABLE s.leaf PARTITION OF s.part FOR VALUES FROM (0) TO (5); CREATE VIEW s.v AS SELECT 1;"
        "CREATE TABLE other PARTITION OF root FOR VALUES FROM (10) TO (20); CREATE TABLE s.other (id int);"
        "CREATE TABLE parent (id int); CREATE TABLE s.child () INHERITS (parent);"
        "CREATE TABLE leaves PARTITION OF root FOR VALUES FROM (20) TO (30)"
    )
    begin_detaching(database, "root", "leaves")

    async def found() -> list[int]:
        source = await Source.connect(database.settings)
        try:
            return await published_oids(source, names)
        finally:
            await source.close()

    for publication in _PUBLICATIONS if version < 15 else _PUBLICATIONS + _PUBLICATIONS_SINCE_15:
        database.execute(f"SET search_path = public, s; CREATE PUBLICATION {names.publication} {publication}")
        query = "SELECT relid::bigint FROM pg_get_publication_tables(%s) ORDER BY relid"
        expected = [oid for (oid,) in database.execute(query, [names.publication])]
        assert expected
        assert asyncio.run(found()) == expected, publication
        database.execute(f"DROP PUBLICATION {names.publication}")
    database.drop()


def test_a_publication_of_a_table_s_schema_sends_all_of_it_whatever_it_says_of_the_table(copier: Copier) -> None:
    publication = copier.names.publication
    copier.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    copier.source.execute(f"CREATE PUBLICATION {publication} FOR TABLE t WHERE (id > 3), TABLES IN SCHEMA public")
    copier.source.execute(f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)")
    [copied] = copier.read("t")
    assert [column.name for column in copied.table.columns] == ["id", "v", "twice"]
    assert copied.row_filter == ""


def test_generated_columns_that_postgresql_15_lists_but_does_not_send_are_left_out(
    copier: Copier, postgres_of: Callable[[int], PostgresServer]
) -> None:
    source = postgres_of(15).create_database(copier.source.dbname)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    source.execute(f'CREATE PUBLICATION "{copier.names.publication}" FOR TABLE t')
    [copied] = replace(copier, source=source).read("t")
    source.drop()
    assert [column.name for column in copied.table.columns] == ["id"]


def test_columns_that_the_role_may_not_read_are_refused(copier: Copier) -> None:
    copier.source.execute('CREATE SCHEMA s; CREATE TABLE s.t (a int, "Secret" text, b int)')
    role = f"reader_{copier.source.dbname}"
    select = f"GRANT SELECT ON s.t TO {role}"
    usage = f"GRANT USAGE ON SCHEMA s TO {role}"
    copier.source.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT (a, b) ON s.t TO {role}")
    try:
        unreadable = "the role may not read Secret, ctid of s.t: "
        also = ", or SELECT on its columns and ctid, by which pages are distinguished"
        assert asyncio.run(_obstacle(copier, role)) == f"{unreadable}{usage}; {select}{also}"
        copier.source.execute(select)
        assert asyncio.run(_obstacle(copier, role)) == f"the role may not use the schema of s.t: {usage}"
        copier.source.execute(usage)
        assert asyncio.run(_obstacle(copier, role)) == "None"
    finally:
        copier.source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def _obstacle(copier: Copier, role: str) -> str:
    """Of the table s.t, for ``role``."""
    settings = copier.source.settings
    keeper = await SnapshotKeeper.export(replace(settings, user=role))
    try:
        [copied] = await read_tables(keeper.source, copier.names, [copier.oid("s.t")], copier.source.server.version)
        return str(copied.obstacle)
    finally:
        await keeper.close()


def test_a_foreign_partition_is_refused(copier: Copier) -> None:
    copier.source.execute(
        "CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE FOREIGN DATA WRAPPER none; CREATE SERVER nowhere "
        "FOREIGN DATA WRAPPER none; CREATE FOREIGN TABLE away PARTITION OF t FOR VALUES IN (1) SERVER nowhere"
    )
    [copied] = copier.read("t")
    assert str(copied.obstacle) == (
        "public.away, a partition of public.t, is a foreign table: its rows cannot be copied; detach it"
    )
