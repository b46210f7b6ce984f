"""A value of any type arrives the same whether it was copied or streamed; both come from a real server."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import pytest

from pgsluice.shared.pgoutput import PgoutputMessage, decode_message
from pgsluice.shared.pgoutput.messages import Relation
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges, TableChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import apply, apply_copied
from pgsluice.testing.changes_builder import restart
from pgsluice.worker.sinks.lines.json_lines import as_changes
from tests.servers import Database
from tests.shared.pgoutput.bodies import body_of, table_of
from tests.shared.pgoutput.corpus import SESSION
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

TYPES = """
CREATE TYPE public.mood AS ENUM ('happy', 'it''s "so, so"');
CREATE TYPE public.pair AS (a integer, b text);
CREATE DOMAIN public.small AS integer CHECK (VALUE < 10);
"""
VALUES: dict[str, list[str]] = {
    "numeric": ["NaN", "Infinity", "-Infinity", "1.5000", "-0.0", "9" * 400 + ".1"],
    "numeric(20, 4)": ["NaN", "-0.0001"],
    "float8": ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "0.1"],
    "real": ["NaN", "-Infinity", "3.4028235e38"],
    "date": ["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 12:00:00.123456 BC"],
    "timestamptz": ["infinity", "-infinity", "0044-03-15 12:00:00+02 BC", "2026-01-31 09:15:00.5-03:30"],
    "interval": ["1 mon -2 days 00:00:00.000001", "-178000000 years", "infinity"],
    "time with time zone": ["24:00:00-15:59"],
    "integer[]": ["{{1,NULL},{NULL,4}}", "[0:1]={7,8}", "{}", "{{{1}},{{2}}}"],
    "text[]": [r'{NULL,"NULL","",a\\b,"c\"d","{e}"}', '{{"a,b"},{"\t\n"}}'],
    "public.pair": ["(,)", '(1,"")', r'(7,"x,""y""\\")'],
    "public.pair[]": ['{"(1,\\"a b\\")",NULL,"(,)"}'],
    "int8range": ["(,5]", "empty", "[9223372036854775806,)", "(,)"],
    "datemultirange": ["{}", "{[2024-01-01,2024-02-01),[2025-01-01,)}"],
    "json": ['{"a" :  1, "a": [2,\n3]}', "null", '"\\u00e9"'],
    "jsonb": ['{"big": 9007199254740993, "exact": 0.10000000000000000000001}', "null", '"a\\tb\\\\"'],
    "text": ["", "\\N", "\\.", "\\.\n\\N\n", "back\\slash \\t \t tab \n line \r return \b\f\v", "é😀\u2028", "x\\\t" * 9000],
    "varchar(20)": ["", "NULL", " padded "],
    "char(5)": ["", "a", "\\"],
    "bytea": ["", r"\x00ff5c0a09"],
    "varbit": ["", "1010"],
    "boolean": ["true", "false"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "inet": ["::1/64", "10.0.0.1"],
    "public.mood": ["happy", 'it\'s "so, so"'],
    "public.small": ["9", "-1"],
    "point": ["(-0,1e300)"],
    "tsvector": ["'a b':1A c", ""],
}
ROWS = [(None,) * len(VALUES), *zip_longest(*VALUES.values())]
WRITTEN = "SELECT t::text FROM kinds t ORDER BY id"


class Source:
    """A table of rows of every type, as the server copies and as it streams them."""

    def __init__(self, database: Database) -> None:
        with database.connect() as connection:
            connection.execute(SESSION)
            connection.execute(TYPES.encode())
            connection.execute(definition())
            connection.execute("CREATE PUBLICATION kinds FOR TABLE kinds")
            connection.execute("SELECT pg_create_logical_replication_slot('kinds', 'pgoutput')")
            for number, row in enumerate(ROWS):
                places = ", ".join(["%s"] * (len(row) + 1))
                connection.execute(f"INSERT INTO kinds VALUES ({places})".encode(), [number, *row])
            taken = connection.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes('kinds', NULL, NULL,"
                " 'proto_version', '1', 'publication_names', 'kinds')"
            )
            self.messages: list[PgoutputMessage] = [decode_message(data) for (data,) in taken]
            connection.execute("SELECT pg_drop_replication_slot('kinds')")
            with connection.cursor().copy("COPY (SELECT * FROM ONLY kinds) TO STDOUT") as copy:
                self.text = b"".join(copy)
            self.written = connection.execute(WRITTEN).fetchall()

    @property
    def table(self) -> Table:
        return next(table_of(message) for message in self.messages if isinstance(message, Relation))

    def copied(self, sequence: int) -> CopiedRows:
        return CopiedRows(sequence, self.table, "first", len(ROWS), memoryview(self.text), restarts=False)

    def streamed(self, sequence: int) -> MessageChanges:
        return decode_changes(body_of(self.messages), first_sequence=sequence, sequence=sequence, first_ordinal=1)


def definition() -> bytes:
    columns = ", ".join(f"c{number} {type_name}" for number, type_name in enumerate(VALUES))
    return f"CREATE TABLE public.kinds (id integer PRIMARY KEY, {columns})".encode()


@pytest.fixture
def source(source_database: Database) -> Source:
    return Source(source_database)


@pytest.fixture
def target(target: Target) -> Target:
    target.execute(TYPES)
    target.execute(definition().decode())
    target.execute(SESSION)
    return target


def test_copied_rows_are_the_sources(source: Source, target: Target) -> None:
    apply_copied(target.sink, [[source.copied(1)]])
    assert target.rows(WRITTEN) == source.written


def test_copied_rows_that_overwrite_others_are_the_sources(source: Source, target: Target) -> None:
    apply_copied(target.sink, [[source.copied(1)]])
    target.execute("UPDATE kinds SET c0 = 1")
    apply_copied(target.sink, [[source.copied(2)]])
    assert target.rows(WRITTEN) == source.written


@WITH_AND_WITHOUT_STAGES
def test_streamed_rows_are_those_that_were_copied(source: Source, target: Target) -> None:
    apply(target.sink, [[source.streamed(1)]])
    assert target.rows(WRITTEN) == source.written


def test_copied_rows_decode_to_the_changes_that_were_streamed(source: Source) -> None:
    (streamed,) = source.streamed(1).parts
    assert isinstance(streamed, TableChanges)
    assert replace(as_changes(source.copied(1)), change_indexes=streamed.change_indexes) == streamed


def test_a_table_that_is_copied_anew_has_the_sources_rows(source: Source, target: Target) -> None:
    apply_copied(target.sink, [[source.copied(1)]])
    apply_copied(target.sink, [[restart(2, source.table)]])
    apply_copied(target.sink, [[replace(source.copied(3), snapshot="second")]])
    assert target.rows(WRITTEN) == source.written
