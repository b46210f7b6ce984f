"""A set of rules meets tables: what fits, what does not, what is worth a warning."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from pgsluice.rules.ruleset import NO_RULES
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import insert, table
from tests.rules.applied import Seen, load, rules, seen

MASK = "{type: transform, column: name, parameters: {type: mask}}"
ADULT = "{type: filter, column: age, parameters: {operator: gte, value: 18}}"
USERS = table("users", "id bigint", "name text", "age integer")


def test_a_table_without_rules_has_none() -> None:
    assert rules("users", MASK).bind(table("orders", "id bigint")) is None
    assert load("tables: {users: []}").bind(USERS) is None
    assert NO_RULES.bind(USERS) is None


def test_rules_are_bound_once_for_each_version_of_a_table() -> None:
    ruleset = rules("users", MASK)
    assert ruleset.bind(USERS) is ruleset.bind(replace(USERS, oid=USERS.oid))
    assert ruleset.bind(USERS) is not ruleset.bind(replace(USERS, columns=USERS.columns[:2]))


def test_a_set_of_rules_can_be_sent_to_a_task() -> None:
    ruleset = rules("users", MASK, ADULT, "{type: transform, column: name, parameters: {type: regex, pattern: e, replace: 3}}")
    sent = pickle.loads(pickle.dumps(ruleset))
    assert sent == ruleset
    assert seen(sent, insert(USERS, b"1", b"alice", b"18")) == [Seen("INSERT", (b"1", b"a***3", b"18"))]


@pytest.mark.parametrize(
    ("rule", "columns", "reason"),
    [
        (MASK, ("id bigint", "names text"), "there is no column 'name' (did you mean 'names'?)"),
        (ADULT, ("id bigint",), "there is no column 'age'"),
        ("{type: filter, not: {all: [{column: a, operator: eq, value: 1}]}}", ("id bigint",), "there is no column 'a'"),
        (MASK, ("id bigint", "name integer"), "column 'name' is integer, and only text can be masked"),
        (MASK, ("id bigint", "name text[]"), "column 'name' is text[], and only text can be masked"),
        ("{type: transform, column: x*, parameters: {type: mask}}", ("id bigint",), "no column matches 'x*'"),
        (
            "{type: transform, column: age, parameters: {type: regex, pattern: a, replace: b}}",
            ("id bigint", "age uuid"),
            "needs text",
        ),
        (ADULT, ("id bigint", "age boolean"), "column 'age' is boolean, and the value '18' is neither true nor false"),
    ],
)
def test_a_rule_that_does_not_fit_the_table_stops_it_with_a_remedy(rule: str, columns: tuple[str, ...], reason: str) -> None:
    ruleset, misfit = rules("users", rule), table("users", *columns)
    with pytest.raises(TerminalError) as refused:
        ruleset.bind(misfit)
    assert reason in refused.value.fact
    assert "rules.yml:3: table 'users', rule 1: table 'public.users': " in refused.value.fact
    assert refused.value.remedy
    assert [refused.value.fact] == ruleset.check([misfit])


def test_a_key_is_not_transformed_unless_its_uniqueness_is_promised() -> None:
    named = table("named", "name text", key=("name",))
    by_index = table("named", "id bigint", "name text", identity=ReplicaIdentity.INDEX, identity_columns=("name",))
    without_key = table("named", "name text", key=(), identity=ReplicaIdentity.FULL)
    for keyed in (named, by_index):
        assert ["two rows could become one" in problem for problem in rules("named", MASK).check([keyed])] == [True]
        promised = rules("named", MASK.replace("type: mask", "type: mask, keeps_unique: true"))
        assert promised.check([keyed]) == []
        assert promised.bind(keyed) is not None
    assert rules("named", MASK).check([without_key]) == []


def test_what_a_pattern_does_not_find_in_one_of_its_tables_is_no_problem_for_a_transform_but_is_for_a_filter() -> None:
    with_name, without = table("shop.a", "id bigint", "name text"), table("shop.b", "id bigint")
    transform, filtering = (
        load(f"tables: {{'shop.*': [{rule}]}}") for rule in (MASK, ADULT.replace("age", "name").replace("18", "x"))
    )
    assert transform.check([with_name, without]) == []
    assert ["there is no column 'name'" in problem for problem in filtering.check([with_name, without])] == [True]
    assert ["no table has a column 'name'" in problem for problem in transform.check([without])] == [True]


def test_a_table_that_is_not_there_and_one_that_is_ambiguous_are_problems() -> None:
    ruleset = load(f"tables: {{users: [{MASK}], '*.customers': [{MASK}]}}")
    other = replace(USERS, schema="shop")
    assert [problem.split(": ", 1)[1] for problem in ruleset.check([USERS, other])] == [
        "table 'users': several tables are called that (public.users, shop.users): write the schema too",
        "table '*.customers': no table is called that",
    ]


def test_all_problems_with_all_tables_are_told() -> None:
    ruleset = rules("users", MASK, ADULT)
    assert len(ruleset.check([table("users", "id bigint")])) == 2


def test_the_hash_is_that_of_what_the_rules_say() -> None:
    text = "tables:\n  users:\n    - {type: filter, column: age, parameters: {operator: gte, value: 18}}\n"
    same = '# a comment\ntables: {"users": [{column: age, type: "filter", parameters: {value: "18", operator: gte}}]}'
    assert load(text).hash == load(same).hash
    assert len(load(text).hash) == 64
    for other in (text.replace("18", "19"), text.replace("users", "people"), text.replace("gte", "gt"), "tables: {}"):
        assert load(other).hash != load(text).hash
    both = f"{{users: [{MASK}], '*': [{ADULT}]}}", f"{{'*': [{ADULT}], users: [{MASK}]}}"
    assert load(f"tables: {both[0]}").hash != load(f"tables: {both[1]}").hash


def test_what_the_replica_identity_keeps_from_a_filter_is_a_warning() -> None:
    full = table("users", "id bigint", "name text", "age integer", identity=ReplicaIdentity.FULL)
    on_key = "{type: filter, column: id, parameters: {operator: lt, value: 10}}"
    (warning,) = rules("users", ADULT, on_key).warnings([USERS])
    assert "table 'public.users' has REPLICA IDENTITY DEFAULT, so an old row's age is not known" in warning
    assert rules("users", ADULT, on_key).warnings([full]) == []


def test_a_transform_that_leaves_old_rows_clear_is_a_warning() -> None:
    full = table("users", "id bigint", "name text", identity=ReplicaIdentity.FULL)
    inserts_only = MASK.replace("}}", "}, operations: [INSERT]}")
    (warning,) = rules("users", inserts_only).warnings([full])
    assert "REPLICA IDENTITY FULL" in warning
    assert "keep 'name' as it is" in warning
    assert rules("users", MASK).warnings([full]) == []
