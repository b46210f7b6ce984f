"""Types of the source that are altered or renamed, at a real target: no column becomes text, and values keep their meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.wire.definition import DomainConstraint, TableDefined, TypeAttribute, TypeDefined
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.definitions.refusal import RefusedDefinitionError
from tests.servers import Database
from tests.worker.definitions.definitions_of import ID, NOTE, column, with_columns
from tests.worker.sinks.postgres.definitions.test_policies import COLUMNS, TARGET, apply

ROW = "INSERT INTO t VALUES (1, 'a', %s)"


def attributes(*named: tuple[int, str, str]) -> tuple[TypeAttribute, ...]:
    return tuple(TypeAttribute(number, name, {"integer": 23, "text": 25}[kind], kind) for number, name, kind in named)


ADDRESS = TypeDefined("ALTER TYPE", 7, "public", "addr", "c", "", (), attributes((1, "street", "text"), (2, "zip", "integer")))
POSITIVE = TypeDefined(
    "ALTER DOMAIN",
    8,
    "public",
    "posint",
    "d",
    "integer",
    (),
    None,
    (DomainConstraint(9, "low"), DomainConstraint(10, "high")),
    True,
)
HOLDING = column(3, "n", type_oid=7, type_name="public.addr")
BEFORE = with_columns(ID, NOTE, HOLDING)


@pytest.fixture
def target(target_database: Database) -> Database:
    target_database.execute("CREATE TYPE addr AS (street text, zip integer)")
    target_database.execute(
        "CREATE DOMAIN posint AS integer CONSTRAINT low CHECK (VALUE > 0) CONSTRAINT high CHECK (VALUE < 9) NOT NULL"
    )
    target_database.execute(TARGET.replace("n integer", "n addr"))
    target_database.execute(ROW, ["(here,1)"])
    return target_database


@pytest.mark.parametrize("kind", ["addr", "addr[]"])
def test_a_column_whose_type_was_renamed_keeps_it_though_nothing_else_tells(target_database: Database, kind: str) -> None:
    """The type's own message has nothing before it when it is the first; a view on the column stops nothing."""
    target_database.execute("CREATE TYPE addr AS (street text, zip integer)")
    target_database.execute(TARGET.replace("n integer", f"n {kind}") + "; CREATE VIEW of_n AS SELECT n FROM t")
    before = with_columns(ID, NOTE, replace(HOLDING, type_name=f"public.{kind}"))
    after = with_columns(ID, NOTE, replace(HOLDING, type_name=f'public."Addr 2"{kind.removeprefix("addr")}'))
    for _ in range(2):
        apply(target_database, Policies(), TableDefined("ALTER TYPE", after), before)
        assert target_database.execute(COLUMNS, ["t"])[0][0].endswith(f'n "Addr 2"{kind.removeprefix("addr")}')


@pytest.mark.parametrize("policies", [{}, {"enum": "ignore"}])
def test_a_column_keeps_its_type_where_the_type_is_not_to_be_renamed_or_was_the_targets_own(
    target: Database, policies: dict[str, str]
) -> None:
    target.execute("CREATE TYPE place AS (street text, zip integer); ALTER TABLE t ALTER n TYPE place USING NULL")
    after = with_columns(ID, NOTE, replace(HOLDING, type_name="public.addr2"))
    apply(target, Policies.parse("apply", policies), TableDefined("ALTER TYPE", after), BEFORE)
    assert target.execute(COLUMNS, ["t"])[0][0].endswith("n place")


def test_a_column_that_gets_a_type_which_the_target_lacks_stops_and_does_not_become_text(target: Database) -> None:
    after = with_columns(ID, NOTE, replace(HOLDING, type_oid=70, type_name="public.elsewhere"))
    with pytest.raises(RefusedDefinitionError, match=r"to public.elsewhere, which the target does not have: create the type"):
        apply(target, Policies(), TableDefined("ALTER TABLE", after), BEFORE)
    assert target.execute(COLUMNS, ["t"])[0][0].endswith("n addr")


@pytest.mark.parametrize(
    ("now", "value"),
    [
        ([(1, "street", "text"), (2, "zip", "integer"), (3, "city", "text")], "(here,1,)"),
        ([(2, "zip", "integer")], "(1)"),
        ([(1, "road", "text"), (2, "zip", "integer")], "(here,1)"),
        ([(2, "code", "integer"), (4, "street", "text")], "(1,)"),
    ],
)
def test_attributes_of_a_composite_type_follow_the_sources_by_number(
    target: Database, now: list[tuple[int, str, str]], value: str
) -> None:
    for _ in range(2):  # the second worker of a target finds it done, unless an attribute has the name of one that went
        apply(target, Policies(), replace(ADDRESS, attributes=attributes(*now)), ADDRESS)
        if now[-1][0] == 4:
            break
    names = (
        "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'addr'::regclass AND NOT attisdropped"
    )
    assert target.execute(names) == [(",".join(name for _, name, _ in now),)]
    assert target.execute("SELECT n::text FROM t") == [(value,)]


def test_a_composite_type_that_would_be_read_otherwise_than_the_source_writes_it_stops(target: Database) -> None:
    target.execute("CREATE TYPE other AS (zip integer, street text)")
    other = replace(ADDRESS, name="other")
    with pytest.raises(
        RefusedDefinitionError, match=r"has the attributes \(zip, street, city\), and the source's has \(street, zip, city\)"
    ):
        apply(
            target,
            Policies(),
            replace(other, attributes=attributes((1, "street", "text"), (2, "zip", "integer"), (3, "city", "text"))),
            other,
        )


def test_a_domain_takes_what_the_sources_takes_and_refuses_nothing_more(target: Database) -> None:
    widened = replace(POSITIVE, constraints=(DomainConstraint(10, "highest"), DomainConstraint(11, "even")), not_null=False)
    constraints = (
        "SELECT array_agg(conname::text ORDER BY conname) FROM pg_constraint WHERE contypid = 'posint'::regtype AND contype = 'c'"
    )
    for _ in range(2):
        apply(target, Policies(), widened, POSITIVE)
        assert target.execute(constraints) == [(["highest"],)]
        assert target.execute("SELECT NULL::posint, 0::posint") == [(None, 0)]


def test_types_that_an_earlier_version_told_of_are_not_compared(target: Database) -> None:
    apply(target, Policies(), replace(ADDRESS, attributes=attributes((1, "street", "text"))), replace(ADDRESS, attributes=None))
    apply(target, Policies(), replace(POSITIVE, constraints=()), replace(POSITIVE, constraints=None))
    assert target.execute("SELECT n::text FROM t") == [("(here,1)",)]
