"""Where rows go: names, columns and operations, and what a routing file may say."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.rules.routing import Routing
from pgsluice.rules.transformation_files import load_routing
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, MessageChanges, TableChanges, Truncation
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Table
from pgsluice.testing.changes_builder import delete, insert, message, table, truncate, update

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "routing.md"

USERS = table("public.users", "id bigint", "username text", "email text", "note text")
FULL = table("public.users", "id bigint", "username text", "email text", "note text", identity=ReplicaIdentity.FULL)
ORDERS = replace(table("public.orders", "id bigint", "total numeric", "items jsonb"), oid=2)

PG_FLO_FILE = """\
users:
  source_table: users
  destination_table: members
  column_mappings:
    - source: id
      destination: member
    - source: username
      destination: login
    - source: email
      destination: email
  operations: [INSERT, UPDATE]
orders:
  source_table: orders
  destination_table: sales
  column_mappings:
    - source: id
      destination: sale
  operations:
    - INSERT
    - DELETE
    - DDL
"""
"""Nothing but what pg_flo's files can say."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "routing.yaml"


def routing(path: Path, text: str) -> Routing:
    path.write_text(text)
    return load_routing(str(path))


def rows_of(changes: MessageChanges) -> TableChanges:
    (part,) = changes.parts
    assert isinstance(part, TableChanges)
    return part


def truncation_of(changes: MessageChanges) -> Truncation:
    (part,) = changes.parts
    assert isinstance(part, Truncation)
    return part


def column_names(of: Table) -> list[str]:
    return [column.name for column in of.columns]


def problems(path: Path, text: str) -> list[str]:
    """Those of a file that is refused, each from its line number on."""
    with pytest.raises(UsageError) as refused:
        routing(path, text)
    return [line.partition(f"{path}:")[2] for line in refused.value.fact.splitlines() if f"{path}:" in line]


def test_a_file_of_pg_flo_renames_tables_and_columns_and_keeps_operations_out(path: Path) -> None:
    routes = routing(path, PG_FLO_FILE)
    changes = rows_of(message(1, insert(USERS, b"1", b"a", b"b", b"c"), delete(USERS, b"1", None, None, None)))
    (routed,) = routes.apply(changes)
    assert routed.table.qualified_name == "public.members"
    assert column_names(routed.table) == ["member", "login", "email", "note"]
    assert list(routed.operations) == [INSERT]
    (orders,) = routes.apply(rows_of(message(1, delete(ORDERS, b"1", None, None))))
    assert (orders.table.name, column_names(orders.table)) == ("sales", ["sale", "total", "items"])
    assert list(orders.operations) == [DELETE]


def test_a_table_without_a_route_goes_on_as_it_is(path: Path) -> None:
    routes = routing(path, "orders: {destination_table: archive.orders}")
    changes = rows_of(message(1, insert(USERS, b"1", b"a", b"b", b"c")))
    assert routes.bind(USERS) is None
    assert routes.apply(changes)[0] is changes
    assert Routing(()).apply(changes)[0] is changes


def test_renaming_costs_nothing_per_row(path: Path) -> None:
    routes = routing(path, "users: {destination_table: people, column_mappings: [{source: id, destination: person}]}")
    changes = rows_of(message(1, update(FULL, b"1", b"a", b"b", UNCHANGED, old=(b"1", b"z", b"b", b"c"))))
    (routed,) = routes.apply(changes)
    assert (routed.new, routed.old) == (changes.new, changes.old)
    assert routed.new[0] is changes.new[0]
    assert routed.operations is changes.operations


def test_keys_identity_and_unchanged_values_follow_their_columns(path: Path) -> None:
    lines = table("lines", "sku text", "order_id bigint", "line integer", "note text", key=("order_id", "line"))
    routes = routing(
        path,
        "lines: {column_mappings: [{source: order_id, destination: o}, {source: line, destination: l}], drop_columns: [sku]}",
    )
    changes = rows_of(message(1, update(lines, b"s", b"7", b"1", UNCHANGED, old=(None, b"6", b"1", None))))
    (routed,) = routes.apply(changes)
    assert column_names(routed.table) == ["o", "l", "note"]
    assert routed.table.key == (0, 1)
    assert [column.identity_key for column in routed.table.columns] == [True, True, False]
    assert routed.new == [[b"7"], [b"1"], [UNCHANGED]]
    assert routed.old == [[b"6"], [b"1"], [None]]
    assert routed.old_kinds == changes.old_kinds


def test_a_dropped_column_is_in_no_image(path: Path) -> None:
    routes = routing(path, "users: {drop_columns: [email, username]}")
    changes = rows_of(
        message(
            1,
            insert(FULL, b"1", b"u", b"clear", b"c"),
            update(FULL, b"1", b"u", b"clear", b"c", old=(b"1", b"u", b"clear", b"c")),
            delete(FULL, b"1", b"u", b"clear", b"c"),
        )
    )
    (routed,) = routes.apply(changes)
    assert column_names(routed.table) == ["id", "note"]
    assert routed.old is not None
    assert all(b"clear" not in column for column in (*routed.new, *routed.old))


def test_one_table_goes_to_several_places_each_with_its_own_operations(path: Path) -> None:
    routes = routing(
        path,
        """
        orders:
          - {}
          - destination_schema: archive
            operations: [INSERT]
          - destination_table: reports.sales
            drop_columns: [items]
        """,
    )
    changes = rows_of(message(1, insert(ORDERS, b"1", b"2", b"[]"), update(ORDERS, b"1", b"3", b"[]")))
    routed = routes.apply(changes)
    assert [(each.table.qualified_name, list(each.operations)) for each in routed] == [
        ("public.orders", [INSERT, UPDATE]),
        ("archive.orders", [INSERT]),
        ("reports.sales", [INSERT, UPDATE]),
    ]
    assert routed[1].change_indexes == [0]
    assert column_names(routed[2].table) == ["id", "total"]


@pytest.mark.parametrize(
    ("operations", "passes"),
    [
        ("", True),
        ("operations: [INSERT, UPDATE, DELETE]", True),
        ("operations: [INSERT]", False),
        ("operations: [TRUNCATE]", True),
    ],
)
def test_a_truncation_goes_where_deletes_go_or_where_it_is_asked_for(path: Path, operations: str, passes: bool) -> None:
    routes = routing(path, f"users:\n  destination_table: people\n  {operations}")
    truncation = truncation_of(message(1, truncate(USERS, ORDERS, cascade=True)))
    routed = routes.truncate(truncation)
    assert routed is not None
    assert [each.qualified_name for each in routed.tables] == [*(["public.people"] if passes else []), "public.orders"]
    assert routed.cascade
    only_users = routes.truncate(truncation_of(message(1, truncate(USERS))))
    assert (only_users is not None) == passes


def test_columns_may_swap_their_names(path: Path) -> None:
    swap = "[{source: email, destination: username}, {source: username, destination: email}]"
    (routed,) = routing(path, f"users: {{column_mappings: {swap}}}").apply(
        rows_of(message(1, insert(USERS, b"1", b"u", b"e", b"n")))
    )
    assert column_names(routed.table) == ["id", "email", "username", "note"]


def test_a_key_may_be_dropped_only_where_no_row_has_to_be_found_again(path: Path) -> None:
    with pytest.raises(TerminalError, match="'id' is part of the key"):
        routing(path, "users: {drop_columns: [id]}").bind(USERS)
    bound = routing(path, "users: {drop_columns: [id], operations: [INSERT]}").bind(USERS)
    assert bound is not None
    assert bound[0].destination.key == ()
    assert not any(column.identity_key for column in bound[0].destination.columns)


def test_a_primary_key_that_replication_does_not_go_by_is_not_kept_in_part(path: Path) -> None:
    by_index = table(
        "t", "a integer", "b integer", "c text", key=("a", "b"), identity=ReplicaIdentity.INDEX, identity_columns=("c",)
    )
    bound = routing(path, "t: {drop_columns: [b]}").bind(by_index)
    assert bound is not None
    destination = bound[0].destination
    assert [column.primary_key_position for column in destination.columns] == [None, None]
    assert [destination.columns[i].name for i in destination.key] == ["c"]


def test_the_most_exact_name_decides_and_a_pattern_takes_the_rest(path: Path) -> None:
    routes = routing(
        path,
        """
        public.*: {destination_schema: mirror, drop_columns: [note]}
        orders: {destination_schema: bare}
        public.orders: {destination_schema: exact}
        """,
    )
    for source, expected in ((ORDERS, "exact.orders"), (replace(ORDERS, schema="shop"), "bare.orders"), (USERS, "mirror.users")):
        bound = routes.bind(source)
        assert bound is not None
        assert [route.destination.qualified_name for route in bound] == [expected]


def test_a_schema_change_that_takes_a_named_column_away_stops_with_the_route(path: Path) -> None:
    routes = routing(path, PG_FLO_FILE)
    routes.bind(USERS)
    changed = replace(USERS, columns=USERS.columns[1:])
    with pytest.raises(TerminalError, match=r"routing.yaml:\d+: table 'users': table 'public.users' has no column 'id'"):
        routes.bind(changed)
    clashing = replace(USERS, columns=(*USERS.columns, replace(USERS.columns[3], name="member")))
    with pytest.raises(TerminalError, match=r"two columns of table 'public.users' would be called 'member'"):
        routes.bind(clashing)


def test_a_table_does_not_go_where_another_one_is_sent(path: Path) -> None:
    routes = routing(path, "users: {destination_table: orders}")
    with pytest.raises(TerminalError, match=r"'public.orders' has no route, and .* sends 'users' there"):
        routes.bind(ORDERS)


def test_tables_may_swap_their_names(path: Path) -> None:
    routes = routing(path, "users: {destination_table: orders}\norders: {destination_table: users}")
    assert not routes.problems([USERS, ORDERS])
    for source, expected in ((USERS, "public.orders"), (ORDERS, "public.users")):
        bound = routes.bind(source)
        assert bound is not None
        assert bound[0].destination.qualified_name == expected


def test_routes_are_checked_against_the_tables_there_are(path: Path) -> None:
    routes = routing(
        path,
        """
        users: {column_mappings: [{source: nme, destination: name}]}
        people: {destination_table: persons}
        orders: {destination_table: sales.orders}
        """,
    )
    found = routes.problems([USERS, ORDERS, replace(ORDERS, schema="shop")])
    assert [problem.partition(": ")[2] for problem in found] == [
        "table 'users': table 'public.users' has no column 'nme'",
        "table 'people': there is no table 'people'",
        "table 'orders': 'orders' could be public.orders or shop.orders; write the schema too",
        "",
    ]
    assert found[-1] == "tables 'public.orders' and 'shop.orders' would both go to 'sales.orders'"


def test_the_hash_follows_the_effect_and_nothing_else(path: Path) -> None:
    one = routing(path, "users: {destination_table: people, operations: [INSERT, UPDATE]}\norders: {destination_schema: s}").hash
    same = "# moved\norders:\n  - destination_schema: s\nusers:\n  operations: [update, insert]\n  destination_table: people\n"
    assert routing(path, same).hash == one
    assert routing(path, same.replace("people", "persons")).hash != one
    assert Routing(()).hash == ""


def test_routes_travel_to_tasks_without_what_they_know_of_tables(path: Path) -> None:
    routes = routing(path, PG_FLO_FILE)
    fresh = len(pickle.dumps(routes))
    routes.bind(USERS)
    assert len(pickle.dumps(routes)) == fresh
    assert pickle.loads(pickle.dumps(routes)).hash == routes.hash


def test_everything_wrong_with_a_file_is_told_at_once_with_its_line(path: Path) -> None:
    found = problems(
        path,
        """\
users:
  destination_tabel: people
  operations: [INSERT, UPSERT]
orders:
a.b.c: {destination_table: x}
shop.*: {destination_table: x}
lines:
  source_table: users
  column_mappings:
    - {source: a, destination: x}
    - {source: b, destination: x}
    - {source: a}
  drop_columns: [a]
  operations: []
events: {destination_schema: s, destination_table: t.u}
""",
    )
    assert [problem.partition(": ")[0] for problem in found] == ["2", "3", "4", "5", "6", "8", "9", "12", "13", "14", "15"]
    for part, expected in zip(
        found,
        [
            "unknown key 'destination_tabel' (did you mean 'destination_table'?)",
            "operation 'UPSERT' is unknown",
            "has no route",
            "'a.b.c' is not a table",
            "would send several tables to one",
            "source_table 'users' is another table",
            "two columns are renamed to 'x'",
            "destination is missing",
            "column 'a' is both renamed and dropped",
            "operations lets nothing pass",
            "both name a schema",
        ],
        strict=True,
    ):
        assert expected in part


@pytest.mark.parametrize(
    "text",
    ["a: {destination_table: c}\nb: {destination_table: c}", "a:\n - {operations: [INSERT]}\n - {operations: [DELETE]}"],
    ids=["two tables", "one table twice"],
)
def test_two_routes_to_one_table_are_refused(path: Path, text: str) -> None:
    (problem,) = problems(path, text)
    assert "is the destination of the route in line" in problem


def test_a_name_with_a_dot_stands_in_double_quotes(path: Path) -> None:
    routes = routing(path, '\'"odd.name"\': {destination_table: \'"out.side"."a.b"\'}')
    bound = routes.bind(table("public.odd", "id bigint", key=("id",)))
    assert bound is None
    bound = routes.bind(replace(USERS, name="odd.name"))
    assert bound is not None
    assert (bound[0].destination.schema, bound[0].destination.name) == ("out.side", "a.b")


def test_the_example_of_the_documents_does_what_stands_below_it(path: Path) -> None:
    section = PAGE.read_text()
    routes = routing(path, section.partition("```yaml\n")[2].partition("```")[0])
    source, changes = "", []
    for line in section.partition("```\n\n```\n")[2].partition("```")[0].splitlines():
        source = line[:49].strip() or source
        changes.append((source, line[49:].split(maxsplit=2)))
    assert len(changes) == 7
    for given, expected in changes:
        name, operation, columns = given.split(maxsplit=2)
        of = table(name, *(f"{column} text" for column in columns.split(", ")))
        values = [b"1"] * len(of.columns)
        change = {"INSERT": insert, "UPDATE": update, "DELETE": delete}[operation](of, *values)
        routed = [
            [each.table.qualified_name, operation, ", ".join(column_names(each.table))]
            for each in routes.apply(rows_of(message(1, change)))
        ]
        assert expected in routed if routed else expected == ["nothing"]


@pytest.mark.parametrize("route", ["{destination_schema: pgsluice}", "{destination_table: pgsluice.applied}"])
def test_a_route_into_the_schema_of_pgsluice_s_own_tables_is_refused(path: Path, route: str) -> None:
    [problem] = problems(path, f"users: {route}\n")
    assert "schema 'pgsluice' holds pgsluice's own tables at a target" in problem
