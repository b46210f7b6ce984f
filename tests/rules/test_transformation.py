"""Rules and routes together, on changes and on copied rows."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.rules.transformation import UNTRANSFORMED, Transformation
from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, CopiedRows, MessageChanges, TableChanges, Truncation
from pgsluice.shared.rows.copy_text import decode_rows
from pgsluice.shared.wire.table import Table, Value
from pgsluice.testing.changes_builder import copied, delete, insert, message, restart, table, truncate, update

USERS = table("public.users", "id bigint", "email text", "age integer")
ORDERS = replace(table("public.orders", "id bigint", "note text"), oid=2)

RULES = """\
tables:
  users:
    - {type: transform, column: email, parameters: {type: mask, mask_char: "*"}}
    - {type: filter, column: age, parameters: {operator: gte, value: 18}}
"""
ROUTES = """\
users:
  - {destination_table: people, column_mappings: [{source: email, destination: mail}]}
  - {destination_schema: archive, drop_columns: [email], operations: [INSERT]}
orders: {destination_schema: sales}
"""


@pytest.fixture
def transformation(tmp_path: Path) -> Transformation:
    return load(tmp_path, RULES, ROUTES)


def load(directory: Path, rules: str = "", routes: str = "") -> Transformation:
    paths = []
    for name, text in (("rules.yaml", rules), ("routing.yaml", routes)):
        path = directory / name
        path.write_text(text)
        paths.append(str(path) if text else "")
    return load_transformation(*paths)


def rows(changes: MessageChanges) -> list[tuple[str, str, list[tuple[Value, ...]], list[int]]]:
    """Of each part: the table, the operations, the new rows and the change indexes."""
    return [
        (part.table.qualified_name, part.operations.decode(), list(zip(*part.new, strict=True)), part.change_indexes)
        for part in changes.parts
        if isinstance(part, TableChanges)
    ]


def copied_text(going: list[CopiedRows]) -> list[tuple[str, int, bytes, bool]]:
    return [(each.table.qualified_name, each.rows, bytes(each.data), each.more_follow) for each in going]


def test_rules_see_the_sources_names_and_routes_come_after_them(transformation: Transformation) -> None:
    source = message(1, insert(USERS, b"1", b"ann@x", b"17"), insert(USERS, b"2", b"bob@y", b"18"), insert(ORDERS, b"7", b"n"))
    changes, rejected = transformation.apply(source)
    assert rejected == []
    assert rows(changes) == [
        ("public.people", "I", [(b"2", b"b***y", b"18")], [1]),
        ("archive.users", "I", [(b"2", b"18")], [1]),
        ("sales.orders", "I", [(b"7", b"n")], [2]),
    ]
    assert [column.name for column in changes.parts[0].table.columns] == ["id", "mail", "age"]  # type: ignore[union-attr]


def test_positions_and_counts_are_those_of_the_source(transformation: Transformation) -> None:
    source = message(4, insert(USERS, b"1", b"ann@x", b"17"), insert(ORDERS, b"7", b"n"))
    changes, _ = transformation.apply(source)
    assert (changes.transactions, changes.change_count) == (source.transactions, 2)
    assert (changes.first_sequence, changes.sequence) == (4, 4)
    assert changes.transactions[0].position(rows(changes)[0][3][0]).ordinal == 2


def test_what_becomes_of_a_change_by_a_filter_is_what_routes_are_asked_for(transformation: Transformation) -> None:
    source = message(
        1, update(USERS, b"1", b"ann@x", b"17"), update(USERS, b"2", b"bob@y", b"18"), delete(USERS, b"3", None, None)
    )
    changes, _ = transformation.apply(source)
    ((name, operations, _, indexes),) = rows(changes)
    assert name == "public.people"
    assert dict(zip(indexes, operations, strict=True)) == {0: chr(DELETE), 1: chr(UPDATE), 2: chr(DELETE)}


def test_a_truncation_follows_its_tables(transformation: Transformation) -> None:
    changes, _ = transformation.apply(
        message(1, insert(USERS, b"1", b"a", b"20"), truncate(USERS, ORDERS), insert(ORDERS, b"1", b"n"))
    )
    (truncation,) = [part for part in changes.parts if isinstance(part, Truncation)]
    assert [each.qualified_name for each in truncation.tables] == ["public.people", "sales.orders"]
    assert changes.parts.index(truncation) == 2


def test_a_table_is_truncated_somewhere_unless_no_route_takes_it(tmp_path: Path) -> None:
    routed = load(tmp_path, routes="users:\n  - {destination_schema: archive, operations: [INSERT]}\n")
    assert (routed.truncates(USERS), routed.truncates(ORDERS)) == (False, True)


def test_a_row_that_a_rule_cannot_process_is_named_and_left_out(transformation: Transformation) -> None:
    changes, rejected = transformation.apply(
        message(1, insert(USERS, b"1", b"ann@x", b"no number"), insert(USERS, b"2", b"bob@y", b"20"))
    )
    ((index, rule, reason),) = rejected
    assert index == 0
    assert "rules.yaml:4: table 'users', rule 2" in rule
    assert "no number" not in reason
    assert [each[3] for each in rows(changes)] == [[1], [1]]


def test_copied_rows_that_are_only_renamed_pass_without_a_look(transformation: Transformation) -> None:
    rows = copied(1, ORDERS, (b"1", b"n"))
    (going,), rejected = transformation.apply_copied(rows)
    assert going.table.qualified_name == "sales.orders"
    assert going.data is rows.data
    assert not rejected
    untouched = UNTRANSFORMED.apply_copied(rows)
    assert untouched[0][0] is rows


def test_copied_rows_go_through_rules_and_to_every_destination_that_takes_inserts(transformation: Transformation) -> None:
    going, rejected = transformation.apply_copied(
        copied(5, USERS, (b"1", b"ann@x", b"17"), (b"2", b"b\tb\\y", b"18"), (b"3", None, b"19"))
    )
    assert rejected == []
    assert copied_text(going) == [
        ("public.people", 2, b"2\tb***y\t18\n3\t\\N\t19\n", True),
        ("archive.users", 2, b"2\t18\n3\t19\n", False),
    ]
    assert {each.sequence for each in going} == {5}


def test_a_copied_row_that_a_rule_cannot_process_is_counted_by_its_place_in_the_message(transformation: Transformation) -> None:
    going, rejected = transformation.apply_copied(copied(1, USERS, (b"1", b"a", b"20"), (b"2", b"b", b"old")))
    assert [row.change_index for row in rejected] == [1]
    assert [each.rows for each in going] == [1, 1]


def test_a_table_that_is_copied_anew_begins_anew_wherever_copied_rows_go(tmp_path: Path) -> None:
    routes = """
        users:
          - {}
          - {destination_schema: archive, drop_columns: [email]}
          - {destination_schema: log, operations: [DELETE]}
    """
    going, _ = load(tmp_path, RULES, routes).apply_copied(restart(1, USERS))
    assert [(each.table.qualified_name, each.restarts, each.more_follow) for each in going] == [
        ("public.users", True, True),
        ("archive.users", True, False),
    ]
    assert [len(each.table.columns) for each in going] == [3, 2]


def test_a_message_whose_rows_are_all_held_back_goes_nowhere(transformation: Transformation) -> None:
    assert transformation.apply_copied(copied(1, USERS, (b"1", b"a", b"3"))) == ([], [])
    changes, _ = transformation.apply(message(1, insert(USERS, b"1", b"a", b"3")))
    assert changes.parts == []


def test_what_routing_drops_needs_no_rule_to_stay_out_of_copied_text(tmp_path: Path) -> None:
    (going,), _ = load(tmp_path, "", "users: {drop_columns: [email]}").apply_copied(copied(1, USERS, (b"1", b"clear", b"9")))
    assert decode_rows(bytes(going.data), 2) == [[b"1"], [b"9"]]


def test_the_hash_is_that_of_rules_and_routes_in_force(tmp_path: Path) -> None:
    hashes = {load(tmp_path, rules, routes).hash for rules in ("", RULES) for routes in ("", ROUTES)}
    assert len(hashes) == 4
    assert "" in hashes
    assert load(tmp_path, RULES + "# a comment\n", ROUTES).hash == load(tmp_path, RULES, ROUTES).hash


def test_a_transformation_travels_to_tasks(transformation: Transformation) -> None:
    source = message(1, insert(USERS, b"1", b"ann@x", b"20"))
    there = pickle.loads(pickle.dumps(transformation))
    assert there.hash == transformation.hash
    assert rows(there.apply(source)[0]) == rows(transformation.apply(source)[0])


def test_problems_of_both_files_are_told_for_the_tables_there_are(tmp_path: Path) -> None:
    found = load(tmp_path, RULES.replace("age", "years"), "people: {destination_table: x}").problems([USERS])
    assert len(found) == 2
    assert "rules.yaml:4" in found[0]
    assert "years" in found[0]
    assert "routing.yaml:1: table 'people': there is no table 'people'" in found[1]


def test_a_column_that_a_schema_change_took_away_stops_the_table_with_the_rule(transformation: Transformation) -> None:
    transformation.apply(message(1, insert(USERS, b"1", b"ann@x", b"20")))
    without = replace(USERS, columns=USERS.columns[:2])
    with pytest.raises(TerminalError, match=r"rules\.yaml:4.*age"):
        transformation.apply(message(2, insert(without, b"1", b"ann@x")))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rules"):
        load_transformation(str(tmp_path / "none.yaml"), "")


def test_inserts_stay_inserts_when_nothing_is_asked_of_a_table() -> None:
    source = message(1, insert(USERS, b"1", b"a", b"3"))
    changes, _ = UNTRANSFORMED.apply(source)
    assert changes.parts == source.parts
    assert rows(changes)[0][1] == chr(INSERT)


MEMBERS = replace(USERS, name="members")


@pytest.mark.parametrize("known", [USERS, MEMBERS], ids=["renamed since the start", "changes of before the rename"])
def test_rules_and_routes_hold_for_a_table_under_its_earlier_and_its_later_name(known: Table, tmp_path: Path) -> None:
    rules, routes = (text.replace("users", known.name) for text in (RULES, ROUTES))
    transformation = pickle.loads(pickle.dumps(load(tmp_path, rules, routes).knowing([known, ORDERS])))
    for named in (USERS, MEMBERS):
        source = message(1, insert(named, b"1", b"ann@x", b"17"), insert(named, b"2", b"bob@y", b"18"), truncate(named))
        changes, _ = transformation.apply(source)
        assert rows(changes) == [
            ("public.people", "I", [(b"2", b"b***y", b"18")], [1]),
            (f"archive.{named.name}", "I", [(b"2", b"18")], [1]),
        ]
        assert isinstance(changes.parts[-1], Truncation)
        assert [each.qualified_name for each in changes.parts[-1].tables] == ["public.people"]
        assert {part.table.source_name for part in changes.parts[:-1]} == {("public", named.name)}
        assert copied_text(transformation.apply_copied(copied(1, named, (b"2", b"bob@y", b"18")))[0]) == [
            ("public.people", 1, b"2\tb***y\t18\n", True),
            (f"archive.{named.name}", 1, b"2\t18\n", False),
        ]
        assert transformation.may_leave_rows_out(named.oid, ("public", named.name))
    assert not load(tmp_path, rules).knowing([known]).may_leave_rows_out(ORDERS.oid, ("public", "orders"))


def test_a_route_back_to_the_earlier_name_takes_the_changes_under_it_along(tmp_path: Path) -> None:
    routes = "members: {destination_table: users}\n"
    source = message(1, insert(USERS, b"1", b"ann@x", b"17"), insert(MEMBERS, b"2", b"bob@y", b"18"))
    transformation = load(tmp_path, routes=routes)
    with pytest.raises(TerminalError, match="has no route"):
        transformation.apply(source)
    changes, _ = transformation.knowing([MEMBERS]).apply(source)
    assert [name for name, *_ in rows(changes)] == ["public.users", "public.users"]


def test_a_table_that_joins_later_does_not_go_where_another_one_goes(tmp_path: Path) -> None:
    """Those that were there at the start were held against each other then."""
    routes = "shop.*: {destination_schema: all}\ncrm.*: {destination_schema: all}\norders: {destination_table: crm.bills}"
    here = [table(name, "id bigint") for name in ("shop.users", "public.orders", "public.loners")]
    transformation = load(tmp_path, routes=routes).knowing(here)
    for known in here:
        assert rows(transformation.apply(message(1, insert(known, b"1")))[0])
    for name, place, taken_by in (
        ("crm.users", "all.users", "shop.users"),
        ("all.users", "all.users", "shop.users"),
        ("crm.bills", "", ""),
    ):
        joined = table(name, "id bigint")
        for apply in (
            lambda joined=joined: transformation.apply(message(2, insert(joined, b"1"))),
            lambda joined=joined: transformation.apply(message(2, truncate(joined))),
            lambda joined=joined: transformation.apply_copied(copied(1, joined, (b"1",))),
        ):
            if not place:
                apply()
                continue
            with pytest.raises(TerminalError, match=f"table '{name}' would go to '{place}', where '{taken_by}' goes"):
                apply()


def test_a_table_that_was_made_again_goes_where_it_went(tmp_path: Path) -> None:
    here = table("shop.users", "id bigint")
    transformation = load(tmp_path, routes="shop.*: {destination_schema: all}").knowing([here])
    again = replace(here, oid=here.oid + 1)
    [(name, *_)] = rows(transformation.apply(message(1, insert(again, b"1")))[0])
    assert name == "all.users"
