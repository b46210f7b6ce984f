"""How tables and columns are spelled: alike in the options, in rules files and in routing files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.replicator.source.tables import parse_pattern
from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.transformation_files import load_routing
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import NamePattern, TablePattern


@pytest.mark.parametrize(
    ("text", "schema", "name", "is_name"),
    [
        ("orders", None, "orders", True),
        ("sales.orders", "sales", "orders", True),
        ("sales.*", "sales", "*", False),
        ("*", None, "*", False),
        ("order_*", None, "order_*", False),
        ("sh*p.orders", "sh*p", "orders", False),
        ('"Sales 2.0"."odd ""name"""', "Sales 2.0", 'odd "name"', True),
        ('"*"', None, "*", True),
        ("größe-?", None, "größe-?", True),
        ("  spaced out ", None, "spaced out", True),
    ],
)
def test_a_pattern_names_a_table_or_several(text: str, schema: str | None, name: str, is_name: bool) -> None:
    pattern = TablePattern.parse(text)
    assert (None if pattern.schema is None else str(pattern.schema), str(pattern.name)) == (schema, name)
    assert pattern.is_name is is_name


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("orders", [("a", "orders"), ("b", "orders")], [("a", "Orders"), ("a", "orders2")]),
        ("a.*", [("a", "x"), ("a", "*")], [("b", "x")]),
        ("a.o*_*", [("a", "o_"), ("a", "orders_2024")], [("a", "o"), ("b", "o_")]),
        ('a."o*"', [("a", "o*")], [("a", "orders")]),
        ("a.o%_", [("a", "o%_")], [("a", "o12")]),
    ],
)
def test_a_pattern_matches_what_it_stands_for(text: str, yes: list[tuple[str, str]], no: list[tuple[str, str]]) -> None:
    pattern = TablePattern.parse(text)
    assert [name for name in yes if not pattern.matches(*name)] == []
    assert [name for name in no if pattern.matches(*name)] == []


@given(st.text("ab*", max_size=7), st.text("ab", max_size=7))
def test_a_star_stands_for_any_characters(text: str, name: str) -> None:
    wanted = re.fullmatch(".*".join(map(re.escape, text.split("*"))), name) is not None
    assert NamePattern(text).matches(name) == wanted


def test_a_pattern_of_many_parts_takes_no_time_on_a_name_that_it_nearly_matches() -> None:
    began = time.monotonic()
    assert not NamePattern("*a" * 30 + "b").matches("a" * 63)
    with pytest.raises(ValueError, match="is not a table"):
        TablePattern.parse('"' * 50_001)
    assert time.monotonic() - began < 2


def test_without_a_schema_a_pattern_can_be_held_to_one_whatever_that_is_called() -> None:
    pattern = TablePattern.parse("o*").within('odd ""*" one')
    assert pattern.matches('odd ""*" one', "orders")
    assert not pattern.matches('odd ""many" one', "orders")
    assert TablePattern.parse("a.o").within("b").matches("a", "o")


@pytest.mark.parametrize(
    ("text", "like"), [("a_b%c\\d", r"a\_b\%c\\d"), ("a*_*", r"a%\_%"), ('"a*b"', "a*b"), ('"a""_"', r'a"\_'), ("*", "%")]
)
def test_sql_is_given_the_same_pattern(text: str, like: str) -> None:
    assert NamePattern(text).like == like


SPELLINGS = ["orders", "a.b", "a.*", "order_*", "*", "*.b", '"x.y"', '"x""y".z', " o ", "o o", '"a*"']
MISSPELLINGS = ["a.b.c", '"open', "a.", ".b", ".", '"a"b', 'a"b', '""', 'a."', '"a"."b"."c"']


def refusal(read: Callable[[], object]) -> str:
    """ "" when what is read is taken."""
    try:
        read()
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", [*SPELLINGS, *MISSPELLINGS])
def test_options_rules_and_routes_take_and_refuse_the_same_spellings(tmp_path: Path, text: str) -> None:
    rules, routes = tmp_path / "rules.yml", tmp_path / "routing.yml"
    rules.write_text(f"tables:\n  '{text}': []\n")
    routes.write_text(f"'{text}': {{destination_schema: archive}}\n")
    refusals = [
        refusal(lambda: parse_pattern(text, "public")),
        refusal(lambda: load_rules(str(rules))),
        refusal(lambda: load_routing(str(routes))),
    ]
    if text in SPELLINGS:
        assert refusals == ["", "", ""]
    else:
        assert ["is not a table" in each for each in refusals] == [True, True, True]
