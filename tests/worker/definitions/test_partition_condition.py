"""Conditions of partitions are read when they compare plain columns with constants, and refused otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.worker.definitions.partition_condition import (
    ColumnComparison,
    Combination,
    Constant,
    Negation,
    NullTest,
    parse_condition,
)
from tests.worker.definitions.definitions_of import ID, NOTE, column

QUOTED = column(3, 'Odd "name"', type_name="character varying(7)")
COLUMNS = {each.name: each for each in (ID, NOTE, QUOTED)}
ONE = Constant("1", is_text=False, type_name="")


def test_ranges_lists_and_defaults_are_read() -> None:
    assert parse_condition("(id = 1)", COLUMNS) == ColumnComparison(1, "=", (ONE,))
    assert parse_condition("((id IS NOT NULL) AND (id >= '-5'::bigint) AND (id < 1))", COLUMNS) == Combination(
        "AND",
        (
            NullTest(1, is_null=False),
            ColumnComparison(1, ">=", (Constant("-5", is_text=True, type_name="bigint"),)),
            ColumnComparison(1, "<", (ONE,)),
        ),
    )
    listed = """(NOT ((note IS NULL) OR (note = ANY (ARRAY['it''s'::text, E'\\\\'::public."Mood"]))))"""
    constants = (Constant("it's", is_text=True, type_name="text"), Constant("\\", is_text=True, type_name='public."Mood"'))
    assert parse_condition(listed, COLUMNS) == Negation(
        Combination("OR", (NullTest(2, is_null=True), ColumnComparison(2, "=", constants)))
    )
    varchar = r'''((("Odd ""name""")::text = ANY ((ARRAY['a'::character varying])::text[])))'''
    assert parse_condition(varchar, COLUMNS) == ColumnComparison(
        3, "=", (Constant("a", is_text=True, type_name="character varying"),)
    )


REFUSED = [
    *(None, "", "()", "true", "(id)", "(id = 1", "id = 1)", "(id = 1))", "(other = 1)", "(1 = 1)", "(id = id)", "(id <> 1)"),
    *("f(id)", "(f(id) = 1)", "(lib.f(id) IS NOT NULL)", "(id = f(1))", "(id = (SELECT 1))", "((id + 1) = 1)", "(id = 1) + 1"),
    *("(id = 1); DROP TABLE t", "(id = 1) -- x", "(id = 1) /* x */", "(id = $$1$$)", "(id = $1)", "(id = U&'x')", "(id = B'1')"),
    *(
        "(id = 1::int or true)",
        "(id = 1::int OR true)",
        "(id = '1'::int collate x)",
        "(id = 1::f(g))",
        "(id = 1::f(1.5))",
        "(id = 1::time(1) or true)",
        "(id = 1::a.b.c)",
    ),
    *("(note COLLATE \"C\" = 'a'::text)", "((note)::date = '2000-01-01'::date)", "((id)::text = '1'::text)"),
    *("satisfies_hash_partition('1'::oid, 2, 0, id)", "(id = E'\\n')", "(id = 'a' 'b')", "(id = 1) AND", "(id = ANY (id))"),
    *("(" * 5000 + "id = 1" + ")" * 5000, "NOT " * 5000 + "(id = 1)", "(id = ANY (ARRAY[]))", "(id = 1e)", "(ID = 1)"),
    "(lib.dblink_exec('dbname=x'::text, ('DROP TABLE customers; --'::text || id)) IS NOT NULL)",
]


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_everything_else_is_refused(text: str | None) -> None:
    assert parse_condition(text, COLUMNS) is None


WORDS = st.sampled_from(
    [
        *("id", "note", "(", ")", "NOT", "AND", "OR", "IS", "NULL", "=", "<", "ANY", "ARRAY", "[", "]", ",", "::", ".", "text"),
        *("1", "true", "f", "'a'", '"x"', ";"),
    ]
)


@given(st.lists(WORDS, max_size=30).map(" ".join) | st.text())
def test_whatever_comes_is_read_or_refused(text: str) -> None:
    parse_condition(text, COLUMNS)
