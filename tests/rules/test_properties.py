"""What holds for every stream of changes, whatever the rules' details."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.rules.ruleset import RuleSet
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Value
from pgsluice.testing.changes_builder import Change
from tests.rules.applied import Seen, rules, seen
from tests.rules.people import ADULT, FILTERS, TABLES, Row, Step, stream

identities = st.sampled_from(list(TABLES))
names = st.none() | st.text(alphabet="ax\U0001f600", max_size=4).map(str.encode)
ages = st.none() | st.integers(16, 20).map(lambda age: str(age).encode())
keys = st.integers(1, 4).map(lambda key: str(key).encode())
steps = st.lists(st.tuples(keys, keys, st.booleans(), names, ages, names), max_size=12)

MASK = "{type: transform, column: name, parameters: {type: mask, mask_char: '#'}}"
REGEX = "{type: transform, column: note, parameters: {type: regex, pattern: 'a', replace: 'b$0'}}"
NOTHING = "{type: transform, column: name, parameters: {type: regex, pattern: 'never', replace: ''}}"


def target(changes: Iterable[Seen]) -> dict[Value, Row]:
    """The rows of a target to which the changes were applied by key, as the Postgres sink does."""
    rows: dict[Value, Row] = {}
    for change in changes:
        old = change.old or change.key
        before = None if old is None else rows.pop(old[0], None)
        if change.new is not None:
            known = change.old or before or rows.get(change.new[0]) or change.new
            row = tuple(was if value is UNCHANGED else value for value, was in zip(change.new, known, strict=True))
            rows[row[0]] = row
    return rows


def applied(ruleset: RuleSet, changes: list[Change]) -> list[Seen]:
    return seen(ruleset, *changes) if changes else []


@pytest.mark.parametrize(("condition", "truth"), FILTERS, ids=[condition for condition, _ in FILTERS])
@given(identity=identities, drawn=steps)
def test_a_filtered_target_holds_the_rows_for_which_the_filter_is_true_and_no_others(
    condition: str, truth: Callable[[Row], bool | None], identity: ReplicaIdentity, drawn: list[Step]
) -> None:
    changes, rows = stream(TABLES[identity], drawn)
    ruleset = rules("people", f"{{type: filter, {condition}}}")
    assert target(applied(ruleset, changes)) == {key: row for key, row in rows.items() if truth(row)}


@given(identity=identities, drawn=steps)
def test_a_filter_and_its_negation_split_the_rows_whose_answer_is_not_null(identity: ReplicaIdentity, drawn: list[Step]) -> None:
    changes, rows = stream(TABLES[identity], drawn)
    passing = target(applied(rules("people", f"{{type: filter, all: [{ADULT}]}}"), changes))
    failing = target(applied(rules("people", f"{{type: filter, not: {ADULT}}}"), changes))
    assert not passing.keys() & failing.keys()
    assert passing | failing == {key: row for key, row in rows.items() if row[2] is not None}


@given(identity=identities, drawn=steps)
def test_a_transform_changes_no_column_that_it_does_not_name(identity: ReplicaIdentity, drawn: list[Step]) -> None:
    changes, _ = stream(TABLES[identity], drawn)

    def others(image: Row | None) -> Row | None:
        return None if image is None else (image[0], image[2], image[3])

    after = applied(rules("people", MASK), changes)
    before = applied(rules("people", NOTHING), changes)
    assert [(row.operation, others(row.new), others(row.key), others(row.old)) for row in after] == [
        (row.operation, others(row.new), others(row.key), others(row.old)) for row in before
    ]


@given(identity=identities, drawn=steps)
def test_the_order_of_independent_rules_does_not_matter(identity: ReplicaIdentity, drawn: list[Step]) -> None:
    changes, _ = stream(TABLES[identity], drawn)
    outcomes = [
        applied(rules("people", *order), changes) for order in permutations((MASK, REGEX, f"{{type: filter, all: [{ADULT}]}}"))
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)


@given(identity=identities, drawn=steps)
def test_no_image_of_a_masked_column_is_clear(identity: ReplicaIdentity, drawn: list[Step]) -> None:
    changes, _ = stream(TABLES[identity], drawn)
    hidden = MASK.replace("mask_char: '#'", "mask_char: '#', keep_first: 0, keep_last: 0")
    for change in applied(rules("people", hidden, f"{{type: filter, all: [{ADULT}]}}"), changes):
        for image in (change.new, change.key, change.old):
            assert image is None or image[1] in (None, UNCHANGED) or set(image[1]) <= set(b"#")
