"""What a rules file may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.rules.rules_file import load_rules
from pgsluice.shared.errors import UsageError
from pgsluice.testing.changes_builder import insert, table
from tests.pg_flo_rules import ROOTLESS_RULES
from tests.rules.applied import Seen, load, rules, seen

PG_FLO = """
tables:
  users:
    - type: transform
      column: email
      parameters:
        type: mask
        mask_char: "*"
        allow_empty_deletes: true
      operations: [INSERT, UPDATE, DELETE]
    - type: transform
      column: phone
      parameters:
        type: regex
        pattern: "^(\\\\d{3})(\\\\d{3})(\\\\d{4})$"
        replace: "($1) $2-$3"
      operations: [INSERT, UPDATE]
    - type: filter
      column: age
      parameters:
        operator: "gte"
        value: 18
        allow_empty_deletes: true
      operations: [INSERT, UPDATE, DELETE]
    - type: filter
      column: balance
      parameters: {operator: gte, value: 75.00}
    - type: filter
      column: score
      parameters: {operator: lt, value: 2500000000}
    - type: filter
      column: rating
      parameters: {operator: gt, value: 4.0}
    - type: filter
      column: active
      parameters: {operator: eq, value: true}
    - type: filter
      column: created_at
      parameters: {operator: gt, value: "2024-01-01T00:00:00Z"}
    - type: filter
      column: name
      parameters: {operator: ne, value: "root"}
      allow_empty_deletes: true
    - type: filter
      column: name
      parameters: {operator: contains, value: "li"}
  events:
    - type: filter
      column: tenant_id
      parameters:
        operator: "eq"
        value: 3
      operations: [INSERT, UPDATE, DELETE]
"""
"""Every kind of rule that pg_flo has, as its files write them."""

USERS = table(
    "users",
    "id bigint",
    "name text",
    "email text",
    "phone varchar",
    "age integer",
    "balance numeric",
    "score bigint",
    "rating float8",
    "active boolean",
    "created_at timestamptz",
)


def user(**values: bytes) -> tuple[bytes, ...]:
    row = {
        "id": b"1",
        "name": b"alice",
        "email": b"alice@example.com",
        "phone": b"5551234567",
        "age": b"18",
        "balance": b"75",
        "score": b"2499999999",
        "rating": b"4.5",
        "active": b"t",
        "created_at": b"2024-01-01 00:00:00.000001+00",
    }
    return tuple((row | values).values())


def test_a_file_of_pg_flo_does_what_it_says() -> None:
    ruleset = load(PG_FLO)
    kept = user(email=b"a***************m", phone=b"(555) 123-4567")
    assert seen(ruleset, insert(USERS, *user())) == [Seen("INSERT", kept)]
    for column, value in {
        "name": b"root",
        "age": b"17",
        "balance": b"74.99",
        "score": b"2500000000",
        "rating": b"4",
        "active": b"f",
        "created_at": b"2024-01-01 00:00:00+00",
    }.items():
        assert seen(ruleset, insert(USERS, *user(**{column: value}))) == [], column
    events = table("events", "id bigint", "tenant_id integer")
    assert seen(ruleset, insert(events, b"1", b"3"), insert(events, b"2", b"4")) == [Seen("INSERT", (b"1", b"3"))]


def test_conditions_are_composed_with_sqls_logic() -> None:
    people = table("people", "id bigint", "age integer", "country text")
    ruleset = rules(
        "people",
        "{type: filter, any: [{all: [{column: age, operator: gte, value: 18}, {column: country, operator: eq, value: DE}]},"
        " {not: {column: age, operator: lt, value: 65}}]}",
    )
    rows = [
        (b"1", b"18", b"DE"),
        (b"2", b"18", b"FR"),
        (b"3", b"65", b"FR"),
        (b"4", None, b"DE"),
        (b"5", b"65", None),
        (b"6", b"20", None),
    ]
    assert [row.new[0] for row in seen(ruleset, *(insert(people, *row) for row in rows)) if row.new] == [b"1", b"3", b"5"]


def test_one_line_masks_every_column_and_table_that_a_pattern_matches() -> None:
    ruleset = load("tables: {'shop.*': [{type: transform, column: '*email*', parameters: {type: mask}}]}")
    customers = table("shop.customers", "id bigint", "email text", "billing_email varchar", "note text")
    row = (b"1", b"a@b.c", b"d@e.f", b"a@b.c")
    assert seen(ruleset, insert(customers, *row)) == [Seen("INSERT", (b"1", b"a***c", b"d***f", b"a@b.c"))]
    assert ruleset.bind(table("shop.orders", "id bigint")) is None
    assert ruleset.bind(table("public.customers", "id bigint", "email text")) is None


@pytest.mark.parametrize("name", ["users", "public.users", "public.*", '"*"', "us*s", "'*.users'", '"\\"users\\""'])
def test_a_table_is_named_alone_with_its_schema_or_by_a_pattern(name: str) -> None:
    assert rules(name, "{type: filter, column: id, parameters: {operator: gt, value: 1}}").bind(
        table("public.users", "id bigint")
    )


def test_all_entries_that_match_a_table_count_in_file_order() -> None:
    mask = "[{type: transform, column: name, parameters: {type: mask}}]"
    starts = "[{type: transform, column: name, parameters: {type: regex, pattern: '^a', replace: A}}]"
    people = table("people", "id bigint", "name text")
    for file, expected in ((f"{{'*': {starts}, people: {mask}}}", b"A***e"), (f"{{people: {mask}, '*': {starts}}}", b"A***e")):
        assert seen(load(f"tables: {file}"), insert(people, b"1", b"alice")) == [Seen("INSERT", (b"1", expected))]
    hidden = "[{type: transform, column: name, parameters: {type: mask, keep_first: 0}}]"
    assert seen(load(f"tables: {{people: {hidden}, '*': {starts}}}"), insert(people, b"1", b"alice")) == [
        Seen("INSERT", (b"1", b"****e"))
    ]


def test_anchors_and_merge_keys_of_yaml_work() -> None:
    ruleset = load(
        "tables:\n"
        "  people:\n"
        "    - &mask {type: transform, column: name, parameters: {type: mask}}\n"
        "    - {<<: *mask, column: email}\n"
    )
    people = table("people", "id bigint", "name text", "email text")
    assert seen(ruleset, insert(people, b"1", b"alice", b"a@b.c")) == [Seen("INSERT", (b"1", b"a***e", b"a***c"))]


def test_every_problem_is_told_at_once_with_its_line_table_and_rule(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(
        """\
table: {}
tables:
  users:
    - type: transform
      column: email
      parameters: {type: mask, mask: "#", mask_char: "*"}
    - type: filters
    - type: filter
      column: age
      parameters: {operator: gte}
    - type: filter
      column: age
      parameters: {operator: between, value: 3}
      operations: [INSERT, UPSERT]
  a.b.c:
    - type: transform
      column: name
      parameters: {type: regex, pattern: "(", replace: ""}
    - type: filter
      any: []
    - type: filter
      all:
        - {column: a, operator: eq, value: 1}
        - {not: {column: b, operator: eq}}
    - just text
"""
    )
    with pytest.raises(UsageError) as refused:
        load_rules(str(path))
    told = [line.strip().removeprefix(f"{path}:") for line in str(refused.value).splitlines()[1:-1]]
    assert told == [
        "1: unknown key 'table' (did you mean 'tables'?)",
        "6: table 'users', rule 1: unknown key 'mask' (did you mean 'mask_char'?)",
        "7: table 'users', rule 2: type 'filters' is unknown (did you mean 'filter'?)",
        "10: table 'users', rule 3: value is missing (write one, like 'value: 18')",
        "13: table 'users', rule 4: operator 'between' is unknown (known: eq, ne, gt, lt, gte, lte, contains)",
        "14: table 'users', rule 4: operations are INSERT, UPDATE and DELETE"
        " (all of them when the key is left out), not 'UPSERT'",
        "15: table 'a.b.c' is not a table (write 'table', 'schema.table', 'schema.*' or '*', a name with a dot in double quotes)",
        "18: table 'a.b.c', rule 1: pattern '(' is not a regular expression (missing ) at position 1)",
        "20: table 'a.b.c', rule 2: any needs at least one condition, like '- {column: age, operator: gte, value: 18}'",
        "24: table 'a.b.c', rule 3: value is missing (write one, like 'value: 18')",
        "25: table 'a.b.c', rule 4: is not a mapping of keys to values",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "rules.yml:1: not a mapping of keys to values"),
        ("- users", "rules.yml:1: not a mapping of keys to values"),
        ("users: []", "unknown key 'users'"),
        ("tables: [users]", "tables is not a mapping"),
        ("tables: {users: {type: filter}}", "unknown key 'type' (known: rules, unlisted, keep, optional)"),
        ("tables:\n  users: [", "not valid YAML"),
        ("tables:\n\tusers: []", "rules.yml:2: not valid YAML: indent with spaces, not with a tab"),
        ("tables: {users: *hidden}", "rules.yml:1: not valid YAML: found undefined alias"),
        ("tables:\n  users: []\n  users: []", "rules.yml:3: users occurs twice (see line 2)"),
        ("tables: &all\n  users: *all", "an alias refers to a node that contains it"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(text)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("{type: transform, parameters: {type: mask}}", "column is missing"),
        ("{type: transform, column: name}", "parameters is missing"),
        ("{type: transform, column: name, parameters: }", "parameters is missing"),
        ("{type: filter, column: name, parameters: }", "parameters is missing"),
        ("{type: transform, column: name, parameters: mask}", "parameters is not a mapping"),
        ("{type: transform, column: name, parameters: {type: hash}}", "type 'hash' is unknown"),
        ("{type: transform, column: name, parameters: {type: mask, mask_char: ''}}", "mask_char is empty"),
        (
            "{type: transform, column: name, parameters: {type: mask, mask_char: '[x]'}}",
            "mask_char has 3 characters (write one character, in quotes",
        ),
        ("{type: transform, column: name, parameters: {type: mask, keep_last: -1}}", "keep_last '-1' is not a whole number"),
        ("{type: transform, column: name, parameters: {type: regex, pattern: a}}", "replace is missing"),
        ("{type: transform, column: name, parameters: {type: regex, pattern: a, replace: $1}}", "uses group 1"),
        ("{type: transform, column: name, operator: eq, parameters: {type: mask}}", "unknown key 'operator'"),
        ("{type: filter, column: name, parameters: {operator: eq, value: [1]}}", "value is not a single value"),
        ("{type: filter, column: name, parameters: {operator: eq, value: null}}", "value is missing"),
        (
            "{type: filter, column: name, parameters: {operator: contains, value: a, order: [a]}}",
            "order defines how labels compare",
        ),
        ("{type: filter, column: name, parameters: {operator: eq, value: 1}, operations: []}", "not none"),
        ("{type: filter, column: name, parameters: {operator: eq, value: 1}, operations: INSERT}", "operations is not a list"),
        ("{type: filter, column: name, all: [{column: a, operator: eq, value: 1}]}", "unknown key 'column'"),
        ("{type: filter, not: {column: a, operator: eq, value: 1}, any: []}", "any and not cannot be used side by side"),
        ("{type: filter, not: [{column: a, operator: eq, value: 1}]}", "not is not a mapping"),
        (
            "{type: filter, column: a, allow_empty_deletes: true,"
            " parameters: {operator: eq, value: 1, allow_empty_deletes: false}}",
            "allow_empty_deletes has one value here",
        ),
        ("{type: filter, column: a, allow_empty_deletes: maybe, parameters: {operator: eq, value: 1}}", "neither true nor false"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: str, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        rules("users", rule)
    assert "rules.yml:3: table 'users', rule 1: " in str(refused.value)
    assert problem in str(refused.value)


@pytest.mark.parametrize("yes", ["true", "Yes", "on", "1", "t"])
@pytest.mark.parametrize("no", ["false", "NO", "off", "0", "f"])
def test_a_switch_is_spelled_as_in_the_configuration(yes: str, no: str) -> None:
    mask = "{{type: transform, column: email, parameters: {{type: mask, keep_domain: {}}}}}"
    for given, kept in ((yes, b"a*d@example.org"), (no, b"a*************g")):
        assert seen(rules("users", mask.format(given)), insert(table("users", "email text"), b"and@example.org")) == [
            Seen("INSERT", (kept,))
        ]


def test_tables_without_a_root_above_them_are_rules_and_a_remark_says_what_pg_flo_does() -> None:
    ruleset = load(ROOTLESS_RULES)
    orders = table("orders", "id bigint", "total_amount numeric", "items jsonb")
    users = table("users", "id bigint", "email text")
    assert seen(ruleset, insert(orders, b"1", b"50.00", b"[]"), insert(orders, b"2", b"150.00", b"[1]")) == [
        Seen("INSERT", (b"2", b"150.00", b"[1]"))
    ]
    assert ruleset.check([orders, users]) == []
    told = [remark.rpartition("rules.yml:")[2] for remark in ruleset.warnings([])]
    assert told == [
        "1: there is no 'tables:' above the tables. pg_flo ignores such a file; here its rules are in force"
        " (write 'tables:' above them, or do not give the file)",
        "2: table 'users', rule 1: is left out: 'operation: lowercase' does nothing in pg_flo, and nothing here",
        "12: table 'orders', rule 2: is left out: 'operation: jsonb_array_length' does nothing in pg_flo, and nothing here",
    ]


def test_a_root_makes_no_difference_to_what_the_rules_are() -> None:
    mask = "{users: [{type: transform, column: email, parameters: {type: mask}}]}"
    assert load(mask).hash == load(f"tables: {mask}").hash
    assert len(load(mask).warnings([])) == 1
    assert load(f"tables: {mask}").warnings([]) == []


@pytest.mark.parametrize(
    "text",
    [
        "users: [{type: transform, column: email, parameters: {type: msk}}]",
        "users: [{type: transform, column: email, parameters: {operation: mask, type: msk}}]",
        "users: [{type: filter, column: email, parameters: {operation: eq, value: 1}}]",
        "tables: {users: [{type: transform, column: email, parameters: {operation: lowercase}}]}",
    ],
)
def test_a_rule_that_may_have_been_meant_is_never_left_out(text: str) -> None:
    with pytest.raises(UsageError, match="table 'users', rule 1: "):
        load(text)


def test_the_list_of_rules_in_pg_flos_examples_is_refused_with_what_to_write() -> None:
    with pytest.raises(UsageError) as refused:
        load(
            "rules:\n  - table: payments\n    type: transform\n    column: card_number\n"
            "    parameters: {type: regex_replace, pattern: '([0-9]+)', replacement: '#'}\n"
        )
    assert "rules.yml:1: unknown key 'rules'" in str(refused.value)
    assert "write 'tables:' and below it each table with its list of rules" in str(refused.value)
    with pytest.raises(UsageError, match=r"type 'regex_replace' is unknown \(known: regex, mask\)"):
        rules("payments", "{type: transform, column: card_number, parameters: {type: regex_replace, pattern: a, replacement: b}}")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_rules(str(tmp_path / "none.yml"))
    (tmp_path / "latin.yml").write_bytes(b"tables: {caf\xe9: []}")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_rules(str(tmp_path / "latin.yml"))
