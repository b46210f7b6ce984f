"""Keys that differ at the source and would be the same at the target are refused before a row is written."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.wire.table import Table
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, delete, insert, table
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.postgres.findings import find
from pgsluice.worker.sinks.postgres.target.key_types import tells_apart
from pgsluice.worker.sinks.postgres.writer import INLINE_BYTES
from tests.end_to_end.type_matrix import BUILT_IN
from tests.servers import Database, PostgresServer
from tests.worker.sinks.postgres.conftest import Target
from tests.worker.sinks.settings import worker_settings

_WORDS = ["a", "A", "a ", "1", "01", "1.0", "2026-01-01", "n" * 63, "n" * 64, "true", "t", "abc", "abc "]
_SHORT_WORDS = ["a", "A", "1", "01", "abc", "t", "on"]
_MOMENTS = ["2026-01-01 10:00:00.1", "2026-01-01 10:00:00.2", "2026-01-01 11:00", "2026-01-02"]
NEAR = {
    "numeric": ["1.01", "1.02", "1.04"],
    "numeric(10,2)": ["1.01", "1.02"],
    "real": ["16777216", "16777218", "1.01", "1.02"],
    "float8": ["16777216", "16777217", "9007199254740993", "1.01", "1.02"],
    "smallint": ["1", "2", "40"],
    "integer": ["16777216", "16777217", "-1", "40"],
    "bigint": ["9007199254740992", "9007199254740993", "4294967295", "-1"],
    "money": ["1.01", "1.02"],
    "text": _WORDS,
    "varchar": _WORDS,
    "name": _WORDS,
    "varchar(3)": _SHORT_WORDS,
    "bpchar": _SHORT_WORDS,
    "char(5)": _SHORT_WORDS,
    "timestamp": _MOMENTS,
    "timestamptz": _MOMENTS,
    "time": ["10:00:00.001", "10:00:00.002"],
    "time(3)": ["10:00:00.001", "10:00:00.002"],
    "timetz": ["10:00:00+00", "10:00:00+01", "10:00:00.1+00"],
    "interval": ["1 day 00:00:00.1", "1 day 00:00:00.2", "1 day 01:00", "1 year 1 mon"],
    "jsonb": ["1", "1.01", "1.02", '"a"'],
    "inet": ["10.0.0.1/8", "10.0.0.2/8", "10.0.0.0/8"],
}
"""Values that differ little, beside those of ``BUILT_IN``."""

NARROWED = (
    *("numeric(9,1)", "numeric(10,0)", "numeric(30,12)", "timestamp(0)", "timestamptz(0)", "time(0)", "timetz(0)", "interval(0)"),
    *("interval year", "char(4)", "char(80)", "varchar(80)", "bit(2)", "bit varying(2)", '"bit"'),
)
"""Types that nothing is read from, beside those of ``BUILT_IN``."""

TRYING = """
CREATE FUNCTION try(place text, number int, value text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO %I VALUES (%s, %L)', place, number, value);
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
CREATE TABLE tried (number int GENERATED ALWAYS AS IDENTITY, kind text, value text);
"""
"""Values go in as COPY takes them: a cast would cut off what does not fit."""

ALIKE = """
SELECT DISTINCT a.kind FROM {place} x JOIN {place} y ON x.number < y.number AND x.v = y.v
  JOIN tried a ON a.number = x.number JOIN tried b ON b.number = y.number AND b.kind = a.kind
"""


def pairs_that_lose_keys(database: Database) -> tuple[set[tuple[str, str]], list[str]]:
    """Source and target by which values that differ become equal, of all types of the server that a key can have; and these."""
    database.execute(TRYING)
    places: dict[str, str] = {}
    with database.connect() as connection:
        for number, spelled in enumerate(dict.fromkeys([*BUILT_IN, *NEAR, *NARROWED])):
            place = f"held_{number}"
            try:
                connection.execute(f"CREATE TABLE {place} (number int, v {spelled} PRIMARY KEY)".encode())
            except psycopg.errors.UndefinedObject:
                continue  # no key can have it
            query = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'"
            [[kind]] = connection.execute(query, [place]).fetchall()
            for value in [*BUILT_IN.get(spelled, []), *NEAR.get(spelled, [])]:
                connection.execute("SELECT try(%s, 0, %s)", [place, value])
            connection.execute(f"INSERT INTO tried (kind, value) SELECT %s, format('%%s', v) FROM {place}".encode(), [kind])
            connection.execute(f"TRUNCATE {place}; ALTER TABLE {place} DROP CONSTRAINT {place}_pkey".encode())
            places[kind] = place
        losing = set()
        for target, place in places.items():
            connection.execute("SELECT try(%s, number, value) FROM tried", [place])
            losing |= {(source, target) for (source,) in connection.execute(ALIKE.format(place=place).encode()).fetchall()}
    return losing, list(places)


def come_and_go(target: Target, keyed: Table, first: bytes, second: bytes) -> None:
    """What leaves the first row, where the target tells the keys apart."""
    target.apply(insert(keyed, first, b"first"))
    target.apply(insert(keyed, second, b"second"))
    target.apply(delete(keyed, second, None))


def test_no_pair_of_types_is_taken_that_makes_different_keys_equal(target_database: Database) -> None:
    losing, kinds = pairs_that_lose_keys(target_database)
    assert len(kinds) > 60
    taken = {pair for pair in losing if tells_apart(*pair)}
    assert {target.partition("(")[0] for _, target in taken} == {"character varying"}  # cuts off blanks beyond its length
    assert ("numeric", "numeric(9,1)") in losing


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("integer", "bigint"),
        ("bigint", "integer"),
        ("bigint", "numeric"),
        ("integer", "numeric(20,0)"),
        ("numeric(9,1)", "numeric(12,2)"),
        ("numeric(9,1)", "numeric"),
        ("oid", "bigint"),
        ("real", "double precision"),
        ("uuid", "text"),
        ("text", "character varying(50)"),
        ("character varying(10)", "text"),
        ("character(4)", "character varying"),
        ("character(4)", "bpchar"),
        ("date", "timestamp without time zone"),
        ("timestamp(3) with time zone", "timestamp with time zone"),
        ("timestamp without time zone", "timestamp with time zone"),
        ("inet", "cidr"),
        ("public.mood", "text"),
        ("public.amount", "integer"),
        ("integer[]", "bigint[]"),
        ("uuid[]", "text"),
    ],
)
def test_a_wider_type_is_taken_and_so_is_one_that_refuses(source: str, target: str) -> None:
    assert tells_apart(source, target)


@pytest.mark.parametrize(
    ("source", "target"), [("text", "public.citext"), ("numeric[]", "numeric(9,1)[]"), ("text[]", "bpchar[]")]
)
def test_what_folds_and_arrays_of_it_are_refused(source: str, target: str) -> None:
    assert not tells_apart(source, target)


@pytest.mark.parametrize(
    ("kind", "here", "rows"),
    [
        ("numeric", "numeric(9,1)", [b"1.01", b"1.02"]),
        ("timestamp with time zone", "timestamp(0) with time zone", [b"2026-01-01 10:00:00.1+00", b"2026-01-01 10:00:00.2+00"]),
        ("text", "character(4)", [b"a", b"a "]),
        ("double precision", "real", [b"16777216", b"16777217"]),
        ("timestamp without time zone", "date", [b"2026-01-01 10:00:00", b"2026-01-01 11:00:00"]),
    ],
)
def test_a_key_of_a_narrower_type_is_refused_before_a_row_is_written(
    target: Target, kind: str, here: str, rows: list[bytes]
) -> None:
    """It took the place of the first row, and its DELETE the row with it."""
    keyed = table("public.narrow", ("id", kind), "note text")
    target.execute(f"CREATE TABLE narrow (id {here} PRIMARY KEY, note text)")
    first, second = rows
    with pytest.raises(TerminalError, match="keys that differ there are the same here") as refusal:
        come_and_go(target, keyed, first, second)
    with pytest.raises(TerminalError):
        apply_copied(target.new_sink(), [[copied(1, keyed, (first, b"first"))]])
    assert target.table("public", "narrow") == []
    [statement] = refusal.value.statements
    target.execute(statement)
    target.sequence = 0
    come_and_go(target, keyed, first, second)
    assert target.rows("SELECT note FROM narrow") == [("first",)]


def test_a_narrower_column_beside_the_key_is_taken(target: Target) -> None:
    target.execute("CREATE TABLE narrow (id bigint PRIMARY KEY, note numeric(9,1))")
    target.apply(insert(table("public.narrow", "id bigint", "note numeric"), b"1", b"1.01"))
    assert target.table("public", "narrow") == [("1", "1.0")]


FOLDING = "CREATE COLLATION folds (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
NAMES = table("public.names", "id text", "note text")
FOLDED = replace(NAMES, columns=(replace(NAMES.columns[0], collation="i und-u-ks-level2"), NAMES.columns[1]))


@pytest.fixture
def with_icu(postgres_of: Callable[[int], PostgresServer]) -> Iterator[Target]:
    """The system's server has collations that are not deterministic."""
    database = postgres_of(15).create_database(f"target_{uuid.uuid4().hex[:12]}")
    target = Target(database, INLINE_BYTES)
    target.execute(FOLDING)
    yield target
    target.close()
    database.drop()


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE names (id text COLLATE folds PRIMARY KEY, note text)",
        "CREATE TABLE names (id text PRIMARY KEY, note text); CREATE UNIQUE INDEX folded ON names (id COLLATE folds)",
        "CREATE DOMAIN word AS text COLLATE folds; CREATE TABLE names (id word PRIMARY KEY, note text)",
        "CREATE TABLE names (id text COLLATE folds, note text) PARTITION BY HASH (id);"
        "CREATE UNIQUE INDEX ON names (id); CREATE TABLE names_0 PARTITION OF names FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
    ],
    ids=["column", "index", "domain", "partitioned"],
)
def test_a_key_that_folds_case_is_refused_before_a_row_is_written(with_icu: Target, definition: str) -> None:
    with_icu.execute(definition)
    with pytest.raises(TerminalError, match="nondeterministic"):
        come_and_go(with_icu, NAMES, b"a", b"A")
    assert with_icu.table("public", "names") == []


def test_the_printed_statement_makes_a_folding_key_exact(with_icu: Target) -> None:
    with_icu.execute("CREATE TABLE names (id text COLLATE folds PRIMARY KEY, note text)")
    with pytest.raises(TerminalError) as refusal:
        with_icu.apply(insert(NAMES, b"a", b"first"))
    [statement] = refusal.value.statements
    with_icu.execute(statement)
    with_icu.sequence = 0
    come_and_go(with_icu, NAMES, b"a", b"A")
    assert with_icu.table("public", "names") == [("a", "first")]


def test_a_key_that_folds_as_the_sources_does_is_taken_and_one_that_folds_more_is_not(with_icu: Target) -> None:
    with_icu.execute("CREATE TABLE names (id text COLLATE folds PRIMARY KEY, note text)")
    with_icu.apply(insert(FOLDED, b"a", b"first"), delete(FOLDED, b"a", None), insert(FOLDED, b"A", b"second"))
    assert with_icu.table("public", "names") == [("A", "second")]
    other = replace(FOLDED, columns=(replace(FOLDED.columns[0], collation="i und-u-ks-level3"), FOLDED.columns[1]))
    with pytest.raises(TerminalError, match="nondeterministic"):
        with_icu.apply(insert(other, b"b", b"third"))


@pytest.mark.parametrize(
    "index",
    [
        "UNIQUE INDEX ON names (lower(id))",
        "UNIQUE INDEX ON names (id COLLATE folds) WHERE note > ''",
        "UNIQUE INDEX ON names (id COLLATE folds, lower(note))",
        "UNIQUE INDEX ON names (id COLLATE folds, note)",
        "INDEX ON names (id COLLATE folds)",
    ],
)
def test_indexes_that_are_no_keys_are_left_alone(with_icu: Target, index: str) -> None:
    with_icu.execute(f"CREATE TABLE names (id text PRIMARY KEY, note text); CREATE {index}")
    with_icu.apply(insert(NAMES, b"a", b""), insert(NAMES, b"b", b""))
    assert with_icu.table("public", "names") == [("a", ""), ("b", "")]


def test_an_enum_takes_a_key_of_text(target: Target) -> None:
    target.execute("CREATE TYPE size AS ENUM ('s', 'S'); CREATE TABLE names (id size PRIMARY KEY, note text)")
    target.apply(insert(NAMES, b"s", b""), insert(NAMES, b"S", b""))
    assert target.table("public", "names") == [("S", ""), ("s", "")]


def test_a_check_names_a_narrower_key_with_its_cure(target: Target) -> None:
    target.execute("CREATE TABLE narrow (id numeric(9,1) PRIMARY KEY, note text)")
    wanted: Table = table("public.narrow", "id numeric", "note text")
    found = find(worker_settings("w"), target.settings, Incoming([wanted], is_from_catalog=True))
    assert [(each.check, each.severity) for each in found if each.severity is Severity.ERROR] == [
        ("target-key-type", Severity.ERROR)
    ]
