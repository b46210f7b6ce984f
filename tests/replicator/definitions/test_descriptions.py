"""What is told of a table is what the server itself sends of it, and a target that follows it has what the source has."""

from __future__ import annotations

from itertools import product

import orjson
import pytest
from psycopg import sql

from pgsluice.shared.wire.definition import DefinitionMessage, TableDefinition, TypeDefined
from pgsluice.shared.wire.names import GroupNames
from tests.replicator.definitions.captured import Stream, install, tables_of
from tests.servers import Database

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s fine');
CREATE DOMAIN percent AS int;
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN frame AS box;
CREATE DOMAIN frames AS box[];
CREATE TYPE framed AS (one box, more box[]);
"""

DEFAULTS = {
    "int": "7",
    "bigint": "-9223372036854775808",
    "numeric(10, 2)": "12.5",
    "numeric": "'NaN'",
    "float8": "0.1::float8 + 0.2",
    "boolean": "true",
    "text": "E'it''s \\\\ \"quoted\",\\n{NULL} \\t'",
    'text COLLATE "C"': "''",
    "varchar(10)": "'NULL'",
    "char(5)": "'x'",
    '"char"': "'y'",
    "bytea": "'\\x00ff27'",
    "date": "'-infinity'",
    "timestamptz": "now()",
    "timestamp(3)": "'2026-01-31 09:15:00.1234'",
    "interval": "'1 year 2 days -03:04:05.6'",
    "uuid": "'12345678-1234-5678-1234-567812345678'",
    "jsonb": '\'{"a": [1, null, "\\\\"]}\'',
    "inet": "'10.0.0.1/8'",
    "money": "12.34",
    "bit varying": "B'0101'",
    "point": "'(1.5,-2)'",
    "box": "'(1,1),(0,0)'",
    "box[]": "'{(1,1),(0,0);(2,2),(1,1)}'",
    "box[][]": "'{{(1,1),(0,0)};{(2,2),(1,1)}}'",
    "public.frame": "'(3,3),(2,2)'",
    "public.frames": "'{(1,1),(0,0);(2,2),(1,1)}'",
    "public.framed": '\'("(1,1),(0,0)","{(1,1),(0,0);(2,2),(1,1)}")\'',
    "polygon": "'((0,0),(1,1))'",
    "oidvector": "'1 2'",
    "tsvector": "$$'a;b':1 'c,d':2$$",
    "int4multirange": "'{[1,3),[5,8)}'",
    "int[]": "'{1,NULL,3}'",
    "text[]": "ARRAY['a\"b', NULL, 'c,\\', '']",
    "int4range": "'[1,5)'",
    "public.mood": "'it''s fine'",
    "public.mood[]": "'{sad,\"it''s fine\"}'",
    "public.percent": "50",
    "public.pair": '\'(1,"a,\\"b")\'',
    "public.pair[]": "ARRAY[ROW(1, 'x')::public.pair]",
}
"""A default for a column of each type."""


def test_what_older_rows_have_can_be_said_again_as_a_default(stream: Stream) -> None:
    """24: at a target, ADD COLUMN with the value that was told, then DROP DEFAULT; equal to the byte."""
    database, kinds = stream.database, dict(enumerate(DEFAULTS))
    database.execute(TYPES)
    database.execute(
        "".join(
            f"CREATE TABLE {table} (a int PRIMARY KEY); INSERT INTO {table} SELECT generate_series(1, 3);"
            for number in kinds
            for table in (f"source_{number}", f"target_{number}")
        )
    )
    sources = ", ".join(f"source_{number}" for number in kinds)
    database.execute(f"ALTER PUBLICATION {stream.names.publication} ADD TABLE {sources}")
    different = {}
    with database.connect() as connection:
        for number, kind in kinds.items():
            connection.execute(f"ALTER TABLE source_{number} ADD v {kind} DEFAULT {DEFAULTS[kind]}".encode())
        stream.read()
        described = {table.name: table for table in tables_of(stream.events)}
        for number, kind in kinds.items():
            [_, column] = described[f"source_{number}"].columns
            literal = "NULL" if column.missing is None else sql.Literal(column.missing).as_string()
            target = f"ALTER TABLE target_{number}"
            connection.execute(f"{target} ADD v {column.type_name} DEFAULT {literal}; {target} ALTER v DROP DEFAULT".encode())
            rows = [
                connection.execute(
                    f"SELECT t::text, pg_column_size(v), v IS NULL FROM {side}_{number} t ORDER BY a".encode()
                ).fetchall()
                for side in ("source", "target")
            ]
            if rows[0] != rows[1] or column.missing is None:
                different[kind] = rows
    assert not different


def test_what_holds_for_every_row_and_how_keys_compare_is_told(stream: Stream) -> None:
    """The system's PostgreSQL 15 has ICU, and so collations that are not deterministic."""
    is_newest = stream.database.server.version >= 18
    collation = "" if is_newest else "COLLATE folds"
    if not is_newest:
        stream.database.execute("CREATE COLLATION folds (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    stream.database.execute(f"ALTER TABLE t ADD word text {collation}, ADD c bpchar, ADD d int NOT NULL DEFAULT 1, ADD e int")
    if is_newest:
        stream.database.execute("ALTER TABLE t ADD CONSTRAINT e NOT NULL e NOT VALID")
    stream.read()
    columns = tables_of(stream.events)[-1].columns
    assert {column.name for column in columns if column.not_null} == {"a", "d"}
    told = {column.name: column.collation for column in columns if column.collation}
    assert told == ({} if is_newest else {"word": "i und-u-ks-level2"})
    assert {column.name: column.type_name for column in columns}["c"] == "bpchar"


TREES = """
CREATE TABLE plain (a int PRIMARY KEY, b int);
CREATE UNLOGGED TABLE unlogged (a int);
CREATE TABLE parent (a int); CREATE TABLE child () INHERITS (parent);
CREATE TABLE p (a int, b int) PARTITION BY LIST (a);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (b);
CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (1);
CREATE SCHEMA o;
CREATE TABLE o.p2b PARTITION OF p2 FOR VALUES IN (2);
CREATE TABLE o.plain (a int);
CREATE VIEW v AS SELECT 1 AS a; CREATE MATERIALIZED VIEW m AS SELECT 1 AS a;
"""

PUBLICATIONS = [
    "FOR TABLE plain, parent, p",
    "FOR TABLE ONLY parent, p2, p2a",
    "FOR TABLE p1, o.p2b",
    "FOR ALL TABLES",
    "FOR TABLES IN SCHEMA o",
    "FOR TABLES IN SCHEMA o, TABLE p1",
    "FOR TABLES IN SCHEMA public",
    "FOR TABLE p2, TABLES IN SCHEMA o",
]


def test_a_table_is_published_when_the_server_says_so(source: Database, names: GroupNames) -> None:
    """Of each publication, by way of the root and not."""
    source.execute(TREES)
    install(source, names)
    different = {}
    with source.connect() as connection:

        def ask(query: str) -> list[str]:
            return [name for (name,) in connection.execute(query.encode())]

        for publication, via_root in product(PUBLICATIONS, ("true", "false")):
            made = f"{names.publication} {publication} WITH (publish_via_partition_root = {via_root})"
            connection.execute(f"CREATE PUBLICATION {made}".encode())
            told = ask(
                f"SELECT DISTINCT s.relation::regclass::text FROM pg_class c,"
                f" pgsluice.{names.in_source('select')}(ARRAY[c.oid]) s WHERE s.is_published ORDER BY 1"
            )
            said = ask(
                "SELECT format('%I.%I', schemaname, tablename)::regclass::text FROM pg_publication_tables"
                f" WHERE pubname = '{names.publication}' AND schemaname <> 'pgsluice' ORDER BY 1"
            )
            assert said
            if told != said:
                different[made] = (told, said)
            connection.execute(f"DROP PUBLICATION {names.publication}".encode())
    assert not different


@pytest.mark.parametrize("publication", ["FOR TABLE t", "FOR TABLE t (a, b, c)", "FOR ALL TABLES"])
def test_the_columns_and_the_key_are_those_of_the_relation_message(source: Database, names: GroupNames, publication: str) -> None:
    """With each replica identity, one after the other."""
    source.execute(
        "CREATE TABLE t (c text, a int, b int NOT NULL, g int GENERATED ALWAYS AS (a * 2) STORED, gone int, PRIMARY KEY (b, a))"
    )
    source.execute("CREATE UNIQUE INDEX tb ON t (b); ALTER TABLE t DROP COLUMN gone")
    source.execute(f"CREATE PUBLICATION {names.publication} {publication} WITH (publish = 'insert')")
    install(source, names)
    stream = Stream.begin(source, names)
    for number, identity in enumerate(("DEFAULT", "NOTHING", "USING INDEX tb", "FULL")):
        if identity == "FULL" and "(" in publication:  # a list has to hold the whole identity
            stream.after(f"ALTER PUBLICATION {names.publication} SET TABLE t WHERE (a > 0)")
        before = len(stream.events)
        [_, relation, _] = stream.after(f"ALTER TABLE t REPLICA IDENTITY {identity}; INSERT INTO t VALUES ('x', 1, {number})")
        [table] = tables_of(stream.events[before:])
        assert relation == f"R t({','.join(relation_columns(table))})", identity
        positions = {column.name: column.primary_key_position for column in table.columns}
        assert positions == {"c": None, "a": 2, "b": 1, "g": None}, identity


def relation_columns(table: TableDefinition) -> list[str]:
    sent = [column for column in table.columns if column.is_published]
    return ["*" * (column.number in table.identity_columns) + column.name for column in sent]


def test_a_partition_is_told_with_the_condition_of_its_rows(stream: Stream, names: GroupNames) -> None:
    stream.after(
        "CREATE TABLE p (a int, at date) PARTITION BY RANGE (at);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2026-01-01') TO ('2026-02-01') PARTITION BY LIST (a);"
        "CREATE TABLE p1x PARTITION OF p1 FOR VALUES IN (7);"
        f"ALTER PUBLICATION {names.publication} ADD TABLE p"
    )
    [table] = tables_of(stream.events)
    nodes = {part.name: part for part in table.partitions}
    assert (table.kind, table.filenode, nodes["p1"].filenode, nodes["p1x"].filenode > 0) == ("p", 0, 0, True)
    assert (nodes["p1"].parent_oid, nodes["p1x"].parent_oid) == (table.oid, nodes["p1"].oid)
    condition = nodes["p1x"].constraint
    assert condition == (
        "((at IS NOT NULL) AND (at >= '2026-01-01'::date) AND (at < '2026-02-01'::date) AND (a IS NOT NULL) AND (a = 7))"
    )
    stream.database.execute("INSERT INTO p VALUES (7, '2026-01-15')")
    assert stream.database.execute(f"SELECT count(*) FROM p WHERE {condition}") == [(1,)]


def test_names_are_utf_8_whatever_the_encoding_of_the_database(names: GroupNames, source: Database) -> None:
    with source.server.connect() as connection:
        connection.execute(f"CREATE DATABASE {source.dbname}_l1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = Database(source.server, f"{source.dbname}_l1")
    try:
        latin.execute(f"CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t")
        install(latin, names)
        stream = Stream.begin(latin, names)
        with latin.connect() as connection:
            connection.execute("ALTER TABLE t ADD größe text DEFAULT 'Übergröße'")
        assert stream.read() == ["table t(*1:a:integer!, 2:größe:text=Übergröße)"]
    finally:
        latin.drop()


def test_a_table_as_wide_as_can_be_is_told(stream: Stream) -> None:
    stream.after("ALTER TABLE t " + ", ".join(f"ADD c{n} int DEFAULT {n}" for n in range(1598)))
    [table] = tables_of(stream.events)
    assert [(column.number, column.missing) for column in table.columns[2:]] == [(n + 3, str(n)) for n in range(1598)]


def test_what_postgresql_says_is_written_as_our_own_encoder_writes_it(stream: Stream) -> None:
    """So the format has one shape, whoever made the message."""
    stream.after("CREATE TYPE mood AS ENUM ('sad')", "ALTER TABLE t ADD m mood DEFAULT 'sad'", "ALTER TYPE mood ADD VALUE 'glad'")
    assert any(isinstance(event, TypeDefined) for event in stream.events)
    encoded = [DefinitionMessage(token, event).encode() for token, event in zip(stream.tokens, stream.events, strict=True)]
    assert [orjson.loads(content) for content in stream.contents] == [orjson.loads(content) for content in encoded]
