"""A source table of people: streams of its changes, and filters as rules and as Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Table, Value
from pgsluice.testing.changes_builder import Change, delete, insert, table, update

Row = tuple[Value, ...]
Step = tuple[bytes, bytes, bool, Value, Value, Value]
"""What to do with the row of the first key; ``stream`` says how."""
COLUMNS = ("id bigint", "name text", "age integer", "note text")
TABLES = {identity: table("people", *COLUMNS, identity=identity) for identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL)}

ADULT = "{column: age, operator: gte, value: 18}"
HAS_X = "{column: name, operator: contains, value: x}"
NOTED = "{column: note, operator: gt, value: a}"


def stream(source: Table, drawn: Iterable[Step]) -> tuple[list[Change], dict[Value, Row]]:
    """The changes of a source table as the server would send them, and the rows that it has in the end.

    A row that is not there is inserted; one that is there is deleted, or updated when there is room for its new key. With
    REPLICA IDENTITY FULL a note that stays is not sent again.
    """
    changes: list[Change] = []
    rows: dict[Value, Row] = {}
    full = source.replica_identity is ReplicaIdentity.FULL
    for key, new_key, is_delete, name, age, note in drawn:
        old = rows.get(key)
        if old is None:
            rows[key] = (key, name, age, note)
            changes.append(insert(source, *rows[key]))
        elif is_delete:
            changes.append(delete(source, *(old if full else (key, None, None, None))))
            del rows[key]
        elif new_key == key or new_key not in rows:
            del rows[key]
            rows[new_key] = (new_key, name, age, note)
            sent = (new_key, name, age, UNCHANGED if full and note == old[3] and note is not None else note)
            key_image = None if new_key == key else (key, None, None, None)
            changes.append(update(source, *sent, old=old if full else key_image))
    return changes, rows


def is_adult(row: Row) -> bool | None:
    return None if row[2] is None else int(row[2]) >= 18  # type: ignore[arg-type]


def has_x(row: Row) -> bool | None:
    return None if row[1] is None else b"x" in row[1]  # type: ignore[operator]


def is_noted(row: Row) -> bool | None:
    return None if row[3] is None else row[3] > b"a"  # type: ignore[operator]


def negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


FILTERS: list[tuple[str, Callable[[Row], bool | None]]] = [
    (f"all: [{ADULT}]", is_adult),
    (f"not: {ADULT}", lambda row: negated(is_adult(row))),
    (f"any: [{ADULT}, {HAS_X}]", lambda row: negated(both(negated(is_adult(row)), negated(has_x(row))))),
    (f"not: {{all: [{HAS_X}, {{not: {NOTED}}}]}}", lambda row: negated(both(has_x(row), negated(is_noted(row))))),
    (f"all: [{NOTED}]", is_noted),
    ("all: [{column: id, operator: lte, value: 2}]", lambda row: row[0] <= b"2"),  # type: ignore[operator]
]
