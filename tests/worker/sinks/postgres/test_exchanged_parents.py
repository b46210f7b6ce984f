"""Parents that exchange what children refer to, while children stay: no action of the target follows the exchange."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.changes_builder import Change, insert, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.worker.sinks.postgres.conftest import Target

PARENT = table("public.parent", "id integer", "email text")
CHILD = table("public.child", "id integer", "parent_id integer", "email text")
FOREIGN_KEY = "child_fkey"

EXCHANGED_KEYS = (
    update(PARENT, b"900", b"a", old=(b"1", None)),
    update(PARENT, b"1", b"b", old=(b"2", None)),
    update(PARENT, b"2", b"a", old=(b"900", None)),
)
EXCHANGED_VALUES = (update(PARENT, b"1", b"third"), update(PARENT, b"2", b"a"), update(PARENT, b"1", b"b"))


@pytest.fixture
def target(target_of_each_role: Target) -> Target:
    return target_of_each_role


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
@pytest.mark.parametrize(
    ("columns", "exchange"),
    [("(parent_id) REFERENCES parent (id)", EXCHANGED_KEYS), ("(email) REFERENCES parent (email)", EXCHANGED_VALUES)],
    ids=["keys", "unique values"],
)
def test_children_stay_or_the_foreign_key_is_named(
    target: Target,
    columns: str,
    exchange: Sequence[Change],
    action: str,
) -> None:
    target.make(
        "CREATE TABLE parent (id int PRIMARY KEY, email text UNIQUE);"
        " CREATE TABLE child (id int PRIMARY KEY, parent_id int, email text);"
        f" ALTER TABLE child ADD CONSTRAINT {FOREIGN_KEY} FOREIGN KEY {columns} ON UPDATE {action} DEFERRABLE INITIALLY DEFERRED"
    )
    target.apply(insert(PARENT, b"1", b"a"), insert(PARENT, b"2", b"b"), insert(CHILD, b"1", b"1", b"a"))
    batch = [target.messages(exchange)]
    for _ in range(5):
        try:
            target.commit(batch)
        except TransientError:
            continue
        except (RejectedChanges, TerminalError) as refused:
            reasons = [each.reason for each in refused.rejections] if isinstance(refused, RejectedChanges) else [str(refused)]
            assert any(f"constraint '{FOREIGN_KEY}'" in reason for reason in reasons)
            break
        assert target.table("public", "parent") == [("1", "b"), ("2", "a")]
        break
    assert target.table("public", "child") == [("1", "1", "a")]


def test_children_that_follow_at_the_source_follow_once_where_tables_refer_to_each_other(target: Target) -> None:
    """Children come before parents here, because no order serves a circle: then the target's cascade must not follow again."""
    target.make(
        "CREATE TABLE first (id int PRIMARY KEY, second_id int); CREATE TABLE second (id int PRIMARY KEY, first_id int);"
        f" ALTER TABLE first ADD CONSTRAINT {FOREIGN_KEY} FOREIGN KEY (second_id) REFERENCES second ON UPDATE CASCADE DEFERRABLE;"
        " ALTER TABLE second ADD FOREIGN KEY (first_id) REFERENCES first DEFERRABLE INITIALLY DEFERRED"
    )
    first, second = (
        table("public.first", "id integer", "second_id integer"),
        table("public.second", "id integer", "first_id integer"),
    )
    rows = (insert(second, b"1", None), insert(second, b"2", None), insert(first, b"1", b"1"), insert(first, b"2", b"2"))
    target.apply(*rows)
    target.apply(
        *(update(second, b"900", None, old=(b"1", None)), update(first, b"1", b"900")),
        *(update(second, b"1", None, old=(b"2", None)), update(first, b"2", b"1")),
        *(update(second, b"2", None, old=(b"900", None)), update(first, b"1", b"2")),
    )
    assert target.table("public", "first") == [("1", "2"), ("2", "1")]
