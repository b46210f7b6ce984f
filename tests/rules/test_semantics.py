"""What each rule does to each operation and each kind of value. The expectations are those of docs/how-to/rules.md."""

from __future__ import annotations

import pytest

from pgsluice.shared.rows.changes import TableChanges
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Value
from pgsluice.testing.changes_builder import delete, insert, message, table, update
from tests.rules.applied import Seen, rejected, rules, seen

COLUMNS = ("id bigint", "name text", "age integer", "tags text[]")
USERS = table("users", *COLUMNS)
FULL = table("users", *COLUMNS, identity=ReplicaIdentity.FULL)

ASTRAL = "\U0001f600x\U00010348y\U0001f600".encode()
"""Five characters, three of them beyond the basic multilingual plane."""

MASK = "{type: transform, column: name, parameters: {type: mask, mask_char: '*'}}"
REGEX = "{type: transform, column: name, parameters: {type: regex, pattern: '[xy]', replace: '<$0>'}}"
ADULT = "{type: filter, column: age, parameters: {operator: gte, value: 18}}"
HAS_X = "{type: filter, column: name, parameters: {operator: contains, value: x}}"
TAGGED = "{type: filter, column: tags, parameters: {operator: contains, value: x}}"

TRANSFORMED: list[tuple[str, Value, Value]] = [
    (MASK, b"xylem", b"x***m"),
    (MASK, b"xyz", b"x*z"),
    (MASK, b"xy", b"**"),
    (MASK, b"x", b"*"),
    (MASK, b"", b""),
    (MASK, None, None),
    (MASK, UNCHANGED, UNCHANGED),
    (MASK, ASTRAL, "\U0001f600***\U0001f600".encode()),
    (REGEX, b"xylem", b"<x><y>lem"),
    (REGEX, b"", b""),
    (REGEX, None, None),
    (REGEX, UNCHANGED, UNCHANGED),
    (REGEX, ASTRAL, "\U0001f600<x>\U00010348<y>\U0001f600".encode()),
]


@pytest.mark.parametrize(("rule", "value", "expected"), TRANSFORMED)
def test_a_transform_changes_every_image_of_a_row(rule: str, value: Value, expected: Value) -> None:
    ruleset = rules("users", rule)
    known, known_expected = (None, None) if value is UNCHANGED else (value, expected)

    def row(name: Value) -> tuple[Value, ...]:
        return (b"1", name, b"20", None)

    assert seen(
        ruleset,
        insert(FULL, *row(known)),
        update(FULL, *row(value), old=row(known)),
        delete(FULL, *row(known)),
    ) == [
        Seen("INSERT", row(known_expected)),
        Seen("UPDATE", row(expected), old=row(known_expected)),
        Seen("DELETE", old=row(known_expected)),
    ]
    assert seen(ruleset, update(USERS, *row(value)), delete(USERS, b"1", None, None, None)) == [
        Seen("UPDATE", row(expected)),
        Seen("DELETE", key=(b"1", None, None, None)),
    ]


YES, NO = True, False

FILTERED: list[tuple[str, str, Value, bool]] = [
    (ADULT, "age", b"18", YES),
    (ADULT, "age", b"17", NO),
    (ADULT, "age", b"-2147483648", NO),
    (ADULT, "age", None, NO),
    (HAS_X, "name", b"axb", YES),
    (HAS_X, "name", b"aXb", NO),
    (HAS_X, "name", b"", NO),
    (HAS_X, "name", None, NO),
    (HAS_X, "name", ASTRAL, YES),
    (TAGGED, "tags", b"{a,x}", YES),
    (TAGGED, "tags", b"{axb}", NO),
    (TAGGED, "tags", b"{}", NO),
    (TAGGED, "tags", b"{a,NULL}", NO),
    (TAGGED, "tags", b"{x,NULL}", YES),
    (TAGGED, "tags", None, NO),
]


def holding(column: str, value: Value, id: Value = b"1") -> tuple[Value, ...]:
    return tuple({"id": id, column: value}.get(spec.split()[0]) for spec in COLUMNS)


@pytest.mark.parametrize(("rule", "column", "value", "passes"), FILTERED)
def test_a_filter_keeps_inserted_and_deleted_rows_for_which_it_is_true(
    rule: str, column: str, value: Value, passes: bool
) -> None:
    row = holding(column, value)
    expected = [Seen("INSERT", row), Seen("DELETE", old=row)] if passes else []
    assert seen(rules("users", rule), insert(FULL, *row), delete(FULL, *row)) == expected


EVERY_FILTER = [(ADULT, "age", b"20", b"10"), (HAS_X, "name", b"x", b"o"), (TAGGED, "tags", b"{x}", b"{o}")]
"""Each with its column, a value that passes and one that does not."""


@pytest.mark.parametrize(("rule", "column", "passing", "failing"), EVERY_FILTER)
def test_an_update_between_known_rows_stays_enters_leaves_or_is_none_of_our_business(
    rule: str, column: str, passing: Value, failing: Value
) -> None:
    inside, outside, null = (holding(column, value) for value in (passing, failing, None))
    assert seen(
        rules("users", rule),
        update(FULL, *inside, old=inside),
        update(FULL, *inside, old=outside),
        update(FULL, *inside, old=null),
        update(FULL, *outside, old=inside),
        update(FULL, *null, old=inside),
        update(FULL, *outside, old=outside),
        update(FULL, *outside, old=null),
    ) == [
        Seen("UPDATE", inside, old=inside),
        Seen("INSERT", inside),
        Seen("INSERT", inside),
        Seen("DELETE", old=inside),
        Seen("DELETE", old=inside),
    ]


@pytest.mark.parametrize(("rule", "column", "passing", "failing"), EVERY_FILTER)
def test_an_update_of_an_unknown_row_is_an_update_or_to_be_safe_a_delete(
    rule: str, column: str, passing: Value, failing: Value
) -> None:
    inside, outside = holding(column, passing), holding(column, failing)
    moved_key = holding(column, None, id=b"7")
    assert seen(
        rules("users", rule),
        update(USERS, *inside),
        update(USERS, *outside),
        update(USERS, *inside, old=moved_key),
        update(USERS, *outside, old=moved_key),
    ) == [
        Seen("UPDATE", inside),
        Seen("DELETE", key=holding(column, None)),
        Seen("UPDATE", inside, key=moved_key),
        Seen("DELETE", key=moved_key),
    ]


@pytest.mark.parametrize(("rule", "column", "passing", "failing"), EVERY_FILTER[1:])
def test_an_unchanged_value_is_the_old_rows(rule: str, column: str, passing: Value, failing: Value) -> None:
    unchanged = holding(column, UNCHANGED)
    inside, outside = holding(column, passing), holding(column, failing)
    ruleset = rules("users", rule)
    assert seen(ruleset, update(FULL, *unchanged, old=inside), update(FULL, *unchanged, old=outside)) == [
        Seen("UPDATE", unchanged, old=inside)
    ]
    assert seen(ruleset, update(USERS, *unchanged)) == [Seen("UPDATE", unchanged)]


@pytest.mark.parametrize(("rule", "column"), [(rule, column) for rule, column, *_ in EVERY_FILTER])
def test_a_delete_whose_row_is_not_known_goes_on_unless_empty_deletes_are_ruled_out(rule: str, column: str) -> None:
    gone = delete(USERS, b"1", None, None, None)
    key_only = Seen("DELETE", key=(b"1", None, None, None))
    ruled_out = rule.replace("parameters: {", "parameters: {allow_empty_deletes: false, ")
    assert seen(rules("users", rule), gone) == [key_only]
    assert seen(rules("users", ruled_out), gone) == []


@pytest.mark.parametrize("where", ["parameters: {allow_empty_deletes: true, ", "allow_empty_deletes: true, parameters: {"])
def test_with_empty_deletes_allowed_a_filter_lets_every_delete_through(where: str) -> None:
    ruleset = rules("users", ADULT.replace("parameters: {", where))
    child = holding("age", b"10")
    assert seen(ruleset, insert(FULL, *child), delete(FULL, *child), delete(FULL, *child)) == [
        Seen("DELETE", old=child),
        Seen("DELETE", old=child),
    ]


def test_a_mask_hides_old_rows_of_deletes_even_with_empty_deletes_allowed() -> None:
    ruleset = rules("users", MASK.replace("parameters: {", "parameters: {allow_empty_deletes: true, "))
    assert seen(ruleset, delete(FULL, b"1", b"clear", None, None)) == [Seen("DELETE", old=(b"1", b"c***r", None, None))]


def test_a_transform_touches_the_operations_it_names_and_no_others() -> None:
    ruleset = rules("users", MASK.replace("}}", "}, operations: [INSERT, DELETE]}"))
    row, masked = (b"1", b"clear", None, None), (b"1", b"c***r", None, None)
    assert seen(ruleset, insert(FULL, *row), update(FULL, *row, old=row), delete(FULL, *row)) == [
        Seen("INSERT", masked),
        Seen("UPDATE", row, old=row),
        Seen("DELETE", old=masked),
    ]


def test_a_filter_holds_back_the_operations_it_names_and_no_others() -> None:
    row = holding("age", b"10")
    changes = (insert(FULL, *row), update(FULL, *row, old=row), delete(FULL, *row))
    expected = [Seen("INSERT", row), Seen("UPDATE", row, old=row), Seen("DELETE", old=row)]
    for place, operation in enumerate(("INSERT", "UPDATE", "DELETE")):
        ruleset = rules("users", ADULT.replace("}}", f"}}, operations: [{operation}]}}"))
        assert seen(ruleset, *changes) == expected[:place] + expected[place + 1 :]


def test_a_filter_on_the_key_knows_the_old_row_without_its_being_sent() -> None:
    ruleset = rules("users", "{type: filter, column: id, parameters: {operator: lt, value: 10}}")

    def row(id: Value, name: Value = None) -> tuple[Value, ...]:
        return (id, name, None, None)

    assert seen(
        ruleset,
        update(USERS, *row(b"1", UNCHANGED)),
        update(USERS, *row(b"20")),
        update(USERS, *row(b"2"), old=row(b"20")),
        update(USERS, *row(b"20"), old=row(b"2")),
        delete(USERS, *row(b"20")),
        delete(USERS, *row(b"2")),
    ) == [
        Seen("UPDATE", row(b"1", UNCHANGED)),
        Seen("INSERT", row(b"2")),
        Seen("DELETE", key=row(b"2")),
        Seen("DELETE", key=row(b"2")),
    ]


def test_a_row_that_enters_is_completed_from_its_old_image() -> None:
    old = (b"1", b"long text", b"10", None)
    assert seen(rules("users", ADULT), update(FULL, b"1", UNCHANGED, b"20", None, old=old)) == [
        Seen("INSERT", (b"1", b"long text", b"20", None))
    ]


def test_a_row_that_enters_without_a_value_that_was_not_sent_is_rejected() -> None:
    ruleset = rules("users", "{type: filter, column: id, parameters: {operator: lt, value: 10}}")
    (row,) = rejected(ruleset, update(USERS, b"2", UNCHANGED, None, None, old=(b"20", None, None, None)))
    assert row.change_index == 0
    assert "column 'name' was not sent" in row.reason
    assert "REPLICA IDENTITY FULL" in row.reason


def test_an_update_that_only_an_unsent_value_could_decide_is_rejected() -> None:
    ruleset = rules(
        "users",
        "{type: filter, all: [{column: id, operator: lt, value: 10}, {column: name, operator: contains, value: x}]}",
    )
    (row,) = rejected(ruleset, update(USERS, b"2", UNCHANGED, None, None, old=(b"20", None, None, None)))
    assert "was not sent" in row.reason


@pytest.mark.parametrize(("rule", "row"), [(ADULT, holding("age", b"many")), (TAGGED, holding("tags", b"x"))])
def test_a_value_that_is_not_of_its_type_is_rejected_and_the_other_rows_are_not(rule: str, row: tuple[Value, ...]) -> None:
    good = (b"2", None, b"20", b"{x}")
    result = rejected(rules("users", rule), insert(USERS, *good), insert(USERS, *row), insert(USERS, *good))
    assert [(each.change_index, "rule 1" in each.rule) for each in result] == [(1, True)]
    assert "not of its type" in result[0].reason
    assert "many" not in str(result)


@pytest.mark.parametrize("rule", [MASK, REGEX, HAS_X.replace("value: x", "value: x, ignore_case: true")])
def test_text_that_is_not_utf8_is_rejected_and_the_other_rows_are_not(rule: str) -> None:
    result = rejected(rules("users", rule), insert(USERS, *holding("name", b"x\xff\xfe")), insert(USERS, *holding("name", b"x")))
    assert [each.change_index for each in result] == [0]


def test_rules_apply_in_file_order_and_each_sees_what_the_one_before_made() -> None:
    row = (b"1", b"alice", None, None)
    starts_clear = "{type: filter, column: name, parameters: {operator: eq, value: alice}}"
    assert seen(rules("users", starts_clear, MASK), insert(USERS, *row)) == [Seen("INSERT", (b"1", b"a***e", None, None))]
    assert seen(rules("users", MASK, starts_clear), insert(USERS, *row)) == []


def test_several_filters_are_one_filter_that_asks_for_all() -> None:
    ruleset = rules("users", ADULT, HAS_X)
    inside, young, plain = (b"1", b"x", b"20", None), (b"1", b"x", b"10", None), (b"1", b"o", b"20", None)
    assert seen(
        ruleset,
        update(FULL, *young, old=plain),
        update(FULL, *plain, old=young),
        update(FULL, *inside, old=plain),
        update(FULL, *young, old=inside),
    ) == [Seen("INSERT", inside), Seen("DELETE", old=inside)]


def test_a_row_held_back_by_a_filter_is_not_rejected_by_a_rule_behind_it() -> None:
    ruleset = rules("users", HAS_X, ADULT)
    assert seen(ruleset, insert(USERS, b"1", b"o", b"many", None)) == []


def test_blanks_at_the_end_of_a_character_column_are_not_part_of_the_value() -> None:
    codes = table("codes", "id bigint", "code character")
    ruleset = rules(
        "codes",
        "{type: filter, column: code, parameters: {operator: eq, value: abcd}}",
        "{type: transform, column: code, parameters: {type: mask}}",
    )
    assert seen(ruleset, insert(codes, b"1", b"abcd  ")) == [Seen("INSERT", (b"1", b"a**d"))]


def test_changes_are_left_as_they_came() -> None:
    def made() -> TableChanges:
        old = (b"1", b"clear", b"20", None)
        (part,) = message(1, insert(FULL, *old), update(FULL, b"1", UNCHANGED, b"10", None, old=old), delete(FULL, *old)).parts
        assert isinstance(part, TableChanges)
        return part

    changes = made()
    bound = rules("users", MASK, ADULT).bind(FULL)
    assert bound is not None
    bound.apply(changes)
    assert changes == made()
