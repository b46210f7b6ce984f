"""What was added and removed by command, beside what the configuration asks for."""

from __future__ import annotations

import pytest

from pgsluice.shared.broker.table_selection import TableSelection, exact_text, qualified_text
from pgsluice.shared.wire.table import TablePattern


def patterns(*texts: str) -> list[TablePattern]:
    return [TablePattern.parse(text) for text in texts]


def test_the_newest_command_counts() -> None:
    selection = TableSelection().add("public.a").add("sales.a").remove("public.a")
    assert (selection.added, selection.removed) == (("sales.a",), ("public.a",))
    selection = selection.remove("sales.*").add("public.a", without_copy=True)
    assert (selection.added, selection.removed) == (("public.a",), ("sales.*",))
    assert selection.without_copy == ("public.a",)
    assert selection.add("sales.*").removed == ()
    assert selection.add("sales.*").remove("public.a").without_copy == ()


def test_an_entry_is_in_quotes_where_it_needs_them() -> None:
    default = TablePattern.parse("orders").within("public")
    assert qualified_text(default) == "public.orders"
    assert qualified_text(TablePattern.parse('sales."a.b"')) == 'sales."a.b"'
    assert qualified_text(TablePattern.parse("sales.*")) == "sales.*"


def test_a_command_that_is_given_twice_is_kept_once() -> None:
    assert TableSelection().add("a.b").add("a.b").added == ("a.b",)
    assert TableSelection().remove("a.b").remove("a.b").removed == ("a.b",)


@pytest.mark.parametrize(
    ("configured", "added", "removed"),
    [
        (["public.t"], ("sales.a", "sales.b_*"), ()),
        (["sales.*"], ("sales.b_*",), ("sales.x",)),
        (["sales.a", "sales.x"], ("sales.b_*",), ("sales.x",)),
        (["sales.b_*", "sales.a"], (), ()),
        ([], ("sales.a", "sales.b_*"), ("sales.x",)),
    ],
)
def test_what_the_configuration_says_by_itself_is_forgotten(
    configured: list[str], added: tuple[str, ...], removed: tuple[str, ...]
) -> None:
    selection = TableSelection(added=("sales.a", "sales.b_*"), removed=("sales.x",)).caught_up(patterns(*configured))
    assert (selection.added, selection.removed) == (added, removed)
    assert selection.configured == tuple(configured)


def test_a_table_joins_without_a_copy_only_as_long_as_people_alone_ask_for_it() -> None:
    selection = TableSelection().add("sales.a", without_copy=True).add("sales.b", without_copy=True)
    assert selection.caught_up(patterns("sales.a")).without_copy == ("sales.b",)


def test_a_removed_table_of_an_added_pattern_stays_removed() -> None:
    selection = TableSelection().add("sales.*").remove("sales.x").caught_up(patterns("public.t"))
    assert (selection.added, selection.removed) == (("sales.*",), ("sales.x",))


@pytest.mark.parametrize("name", ["plain", "Two Words", "a.b", "with*", 'quo"te'])
def test_one_table_is_an_entry_whatever_its_name(name: str) -> None:
    pattern = TablePattern.parse(exact_text("public", name))
    assert pattern.is_name
    assert pattern.matches("public", name)
    assert not pattern.matches("public", name + "x")
