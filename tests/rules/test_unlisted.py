"""Columns that no rule names, and rules for columns that are still to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.rules.rule import Unlisted
from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.ruleset import RuleSet
from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import load_routing
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.rows.changes import DefinitionChange, TableChanges, Truncation
from pgsluice.shared.wire.definition import TableDefined
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.changes_builder import copied, delete, insert, message, table, truncate, update
from tests.rules.applied import Seen, load, seen
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, with_columns

USERS = table("public.users", "id bigint", "email text", "ssn text")
SHORT = table("public.users", "id bigint", "email text")
MASK = "{type: transform, column: email, parameters: {type: mask, mask_char: '*'}}"


def users(unlisted: str, *rules: str, keep: str = "[id]", more: str = "") -> RuleSet:
    listed = "".join(f"\n      - {rule}" for rule in rules or (MASK,))
    return load(f"tables:\n  users:\n    unlisted: {unlisted}\n    keep: {keep}\n{more}    rules:{listed}\n")


def test_nothing_is_said_of_columns_that_no_rule_names_unless_somebody_does() -> None:
    plain = load(f"tables:\n  users:\n    - {MASK}\n")
    assert [entry.unlisted for entry in plain.entries] == [Unlisted.KEEP]
    for ruleset in (plain, users("keep"), load(f"tables: {{users: {{rules: [{MASK}]}}}}")):
        assert seen(ruleset, insert(USERS, b"1", b"abc", b"s")) == [Seen("INSERT", (b"1", b"a*c", b"s"))]


@pytest.mark.parametrize("word", ["null", '"null"'])
def test_values_of_columns_that_no_rule_names_are_null_in_new_and_old_rows(word: str) -> None:
    full = replace(USERS, replica_identity=ReplicaIdentity.FULL)
    changes = (
        insert(full, b"1", b"abc", b"s"),
        update(full, b"1", b"abc", b"t", old=(b"1", b"abc", b"s")),
        update(full, b"1", b"abc", UNCHANGED, old=(b"1", b"abc", b"s")),
        delete(full, b"1", b"abc", b"s"),
    )
    told = seen(users(word), *changes)
    assert [row.new for row in told] == [(b"1", b"a*c", None)] * 3 + [None]
    assert [row.old for row in told] == [None] + [(b"1", b"a*c", None)] * 3


def test_what_is_cleared_may_be_null_wherever_a_table_is_spoken_of() -> None:
    strict = replace(USERS, columns=tuple(replace(each, not_null=True, identity="a") for each in USERS.columns))
    cleared = Transformation(users("null"))
    routed = replace(cleared, routing=load_routing("routing.yml", "users: {destination_table: people}"))
    for transformation in (cleared, routed):
        told, _ = transformation.apply(message(1, insert(strict, b"1", b"abc", b"s"), truncate(strict)))
        rows, truncation = told.parts
        assert isinstance(rows, TableChanges)
        assert isinstance(truncation, Truncation)
        begun, _ = transformation.apply_copied(copied(1, strict))
        [copy], _ = transformation.apply_copied(copied(1, strict, (b"1", b"abc", b"s")))
        assert bytes(copy.data) == b"1\ta*c\t\\N\n"
        for left in (rows.table, truncation.tables[0], begun[0].table, copy.table, *transformation.destinations(strict)):
            assert [(each.not_null, each.identity) for each in left.columns] == [(True, "a"), (True, "a"), (False, "")]


def test_a_copy_and_a_change_with_a_column_that_no_rule_names_are_refused_with_the_column() -> None:
    refusing = Transformation(users("refuse"))
    sentence = (
        r"rules\.yml:2: table 'users': no rule names column 'ssn' of table 'public\.users', and 'unlisted' is refuse "
        r"\(name it in one, or under 'keep'\): correct the rules file and start again"
    )
    with pytest.raises(TerminalError, match=sentence):
        refusing.apply(message(1, insert(USERS, b"1", b"abc", b"s")))
    for rows in ((), [(b"1", b"abc", b"s")]):
        with pytest.raises(TerminalError, match=sentence):
            refusing.apply_copied(copied(1, USERS, *rows))
    assert len(refusing.problems([USERS])) == 1
    assert refusing.problems([SHORT]) == []
    told, _ = refusing.apply(message(1, insert(SHORT, b"1", b"abc")))
    assert isinstance(told.parts[0], TableChanges)


def test_a_key_is_not_made_null() -> None:
    ruleset = users("null", keep="[]")
    [problem] = ruleset.check([USERS])
    assert "column 'id' of table 'public.users' is part of the key and cannot be NULL, and no rule names it" in problem
    with pytest.raises(TerminalError, match="is part of the key and cannot be NULL"):
        ruleset.bind(USERS)


def test_the_strictest_of_the_entries_that_match_counts_and_columns_of_all_are_listed() -> None:
    text = "tables:\n  '*': {unlisted: refuse, keep: [id]}\n  users: {unlisted: keep, rules: [%s]}\n  public.*: {keep: ['s*']}\n"
    ruleset = load(text % MASK)
    assert ruleset.check([USERS, table("public.t", "id bigint")]) == []
    assert len(ruleset.check([USERS, replace(USERS, schema="other", name="people")])) == 2
    filtered = users("refuse", "{type: filter, column: ssn, parameters: {operator: ne, value: x}}", MASK)
    assert seen(filtered, insert(USERS, b"1", b"abc", b"s")) == [Seen("INSERT", (b"1", b"a*c", b"s"))]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("unlisted: drop", "unlisted is none of keep, null, refuse"),
        ("unlisted:", "unlisted is none of keep, null, refuse"),
        ("unlisted: [refuse]", "unlisted is none of keep, null, refuse"),
        ("keep: id", "keep is not a list of texts"),
        ("unlistet: refuse", "unknown key 'unlistet' (did you mean 'unlisted'?)"),
        ("rules: {type: filter}", "rules is not a list"),
        ("optional: perhaps", "optional 'perhaps' is neither true nor false"),
    ],
)
def test_what_is_said_of_a_table_is_read_strictly(settings: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_rules("rules.yml", f"tables:\n  users:\n    {settings}\n")
    assert f"rules.yml:3: table 'users': {problem}" in str(caught.value)


def test_a_mask_for_a_column_that_is_still_to_come_counts_from_the_first_row_that_has_it() -> None:
    mask = MASK.replace("{type", "{optional: true, type", 1).replace("email", "phone")
    ruleset = load(f"tables:\n  users:\n    - {mask}\n")
    assert ruleset.check([SHORT]) == []
    [warning] = ruleset.warnings([SHORT])
    assert warning.endswith("table 'public.users' has no column 'phone' yet; the rule counts when it comes")
    assert ruleset.bind(SHORT) is None
    wider = table("public.users", "id bigint", "email text", "phone text")
    assert seen(ruleset, insert(wider, b"1", b"abc", b"555")) == [Seen("INSERT", (b"1", b"abc", b"5*5"))]
    assert ruleset.warnings([wider]) == []


def test_a_filter_on_a_column_that_is_still_to_come_lets_rows_pass_until_it_is_there() -> None:
    ruleset = load("tables:\n  users:\n    - {type: filter, optional: true, column: ssn, parameters: {operator: eq, value: a}}\n")
    assert ruleset.bind(SHORT) is None
    assert seen(ruleset, insert(USERS, b"1", b"abc", b"b"), insert(USERS, b"1", b"abc", b"a"))[0].new == (b"1", b"abc", b"a")


def test_rules_and_routes_of_a_table_that_is_still_to_come_are_no_problem() -> None:
    text = f"tables:\n  later:\n    optional: true\n    rules: [{MASK}]\n"
    assert load(text).check([USERS]) == []
    assert load(text.replace("    optional: true\n", "")).check([USERS]) != []
    route = "users: {drop_columns: [phone], optional: true}\nlater: {destination_schema: crm, optional: true}"
    assert load_routing("routing.yml", route).problems([USERS]) == []
    assert len(load_routing("routing.yml", route.replace(", optional: true", "")).problems([USERS])) == 2
    wider = table("public.users", "id bigint", "phone text")
    told, _ = Transformation(routing=load_routing("routing.yml", route)).apply(message(1, insert(wider, b"1", b"555")))
    assert isinstance(told.parts[0], TableChanges)
    assert told.parts[0].new == [[b"1"]]


def test_the_value_that_a_column_was_added_with_is_hidden_as_those_of_rows() -> None:
    """A target gives it to the rows that it has."""
    wider = with_columns(ID, NOTE, column(3, "phone", missing="555"), replace(column(4, "plan", missing="gold"), not_null=True))
    altered = PublishedDefinition(TableDefined("ALTER TABLE", wider), TABLE)

    def missing(text: str) -> list[tuple[str | None, bool]]:
        transformation = Transformation(load(text))
        message_told, _ = transformation.apply(message(1, altered))
        [part] = message_told.parts
        assert isinstance(part, DefinitionChange)
        assert part.definition == transformation.without_held(altered)
        event = part.definition.event
        assert isinstance(event, TableDefined)
        return [(each.missing, each.not_null) for each in event.table.columns[2:]]

    mask = MASK.replace("email", "phone")
    assert missing("tables: {other: []}") == [("555", False), ("gold", True)]
    assert missing(f"tables: {{t: [{mask}]}}") == [("5*5", False), ("gold", True)]
    assert missing(f"tables: {{t: {{unlisted: 'null', keep: [id, note], rules: [{mask}]}}}}") == [("5*5", False), (None, False)]
    with pytest.raises(TerminalError, match="no rule names column 'plan'"):
        missing(f"tables: {{t: {{unlisted: refuse, keep: [id, note], rules: [{mask}]}}}}")


def test_a_table_that_lists_its_columns_needs_no_decision_about_new_ones() -> None:
    wider = with_columns(ID, NOTE, column(3, "phone"), column(4, "plan"))
    altered = PublishedDefinition(TableDefined("ALTER TABLE", wider), TABLE)
    masked = MASK.replace("email", "note")
    for text, found in (
        (f"{{t: [{masked}]}}", ["phone", "plan"]),
        (f"{{t: {{keep: [plan], rules: [{masked}]}}}}", ["phone"]),
        (f"{{t: {{unlisted: 'null', keep: [id], rules: [{masked}]}}}}", []),
    ):
        assert [each.name for each in Transformation(load(f"tables: {text}")).unguarded(altered)] == found
