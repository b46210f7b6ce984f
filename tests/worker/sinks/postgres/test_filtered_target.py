"""A target behind a filter holds the source's rows that pass, whatever happened to them: rules and the merge together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from pgsluice.rules.transformation import Transformation
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from tests.rules.applied import rules
from tests.rules.people import FILTERS, TABLES, Row, Step, stream
from tests.worker.sinks.postgres.conftest import Target

MASK = "{type: transform, column: name, parameters: {type: mask, mask_char: '#', keep_first: 0, keep_last: 0}}"

WITHOUT_KEY = replace(
    TABLES[ReplicaIdentity.FULL],
    columns=tuple(replace(column, primary_key_position=None, not_null=False) for column in TABLES[ReplicaIdentity.FULL].columns),
)


def drawn(random: Random, count: int) -> list[Step]:
    def text() -> bytes | None:
        return random.choice([None, b"", b"a", b"x", b"axe", "\U0001f600x".encode()])

    def key() -> bytes:
        return b"%d" % random.randint(1, 9)

    return [
        (key(), key(), random.random() < 0.3, text(), random.choice([None, b"17", b"18", b"19"]), text()) for _ in range(count)
    ]


def as_in_target(row: Row) -> tuple[str | None, ...]:
    texts = [value.decode() if isinstance(value, bytes) else None for value in row]
    return (texts[0], None if texts[1] is None else "#" * len(texts[1]), *texts[2:])


@pytest.mark.parametrize("source", [*TABLES.values(), WITHOUT_KEY], ids=["default", "full", "without key"])
@pytest.mark.parametrize(("condition", "truth"), FILTERS, ids=[condition for condition, _ in FILTERS])
def test_a_filtered_target_holds_the_rows_that_pass(
    source: Table, condition: str, truth: Callable[[Row], bool | None], new_target: Callable[[], Target]
) -> None:
    target = new_target()
    changes, rows = stream(source, drawn(Random(condition), 300))
    transformation = Transformation(rules("people", f"{{type: filter, {condition}}}", MASK))
    for start in range(0, len(changes), 40):
        transactions = [changes[first : first + 5] for first in range(start, min(start + 40, len(changes)), 5)]
        transformed = [transformation.apply(message) for message in target.messages(*transactions)]
        assert not any(rejected for _, rejected in transformed)
        target.commit([[message for message, _ in transformed]])
    assert target.table("public", "people") == sorted((as_in_target(row) for row in rows.values() if truth(row)), key=repr)
