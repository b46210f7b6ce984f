"""Rows that the target takes only together are applied while it refuses others: foreign keys are checked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.changes_builder import Change, insert, table, update
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.worker.sinks.postgres.conftest import Target

PARENT = table("public.parent", "id integer", "favourite integer")
CHILD = table("public.child", "id integer", "parent_id integer")
PRICE = table("public.price", "id integer", "price integer")
MADE = """
CREATE TABLE price (id int PRIMARY KEY, price int CHECK (price < 1000));
CREATE TABLE parent (id int PRIMARY KEY, favourite int);
CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent {0});
ALTER TABLE parent ADD CONSTRAINT favoured FOREIGN KEY (favourite) REFERENCES child {0}
"""
EXCHANGE = (
    update(PARENT, b"900", None, old=(b"1", None)),
    update(PARENT, b"1", None, old=(b"2", None)),
    update(PARENT, b"2", None, old=(b"900", None)),
)
CIRCLE = (insert(PARENT, b"10", b"10"), insert(CHILD, b"10", b"10"))
DEAR = insert(PRICE, b"1", b"5000")
ORPHAN = insert(CHILD, b"99", b"77")


@pytest.fixture(params=["DEFERRABLE INITIALLY IMMEDIATE", "DEFERRABLE INITIALLY DEFERRED"])
def checking(target: Target, request: pytest.FixtureRequest) -> Target:
    target.execute(MADE.format(request.param))
    target.apply(*(insert(PARENT, key, None) for key in (b"1", b"2")), *(insert(CHILD, key, key) for key in (b"1", b"2")))
    return target


def refused(target: Target, *changes: Change) -> list[str]:
    """The reasons of the changes that are refused, after which the others are applied."""
    reasons: list[str] = []
    left = list(changes)
    while True:
        batch = [target.messages(left)]
        try:
            target.commit(batch)
        except TransientError:
            target.sequence -= 1
        except RejectedChanges as error:
            target.sequence -= 1
            reasons += [each.reason for each in error.rejections]
            gone = {each.position.ordinal for each in error.rejections}
            left = [change for ordinal, change in enumerate(left, 1) if ordinal not in gone]
        else:
            return reasons


@pytest.mark.parametrize("rows", [EXCHANGE, CIRCLE], ids=["exchanged keys", "a circle"])
def test_they_are_applied_in_the_batch_of_a_refused_row_and_in_those_after_it(checking: Target, rows: Sequence[Change]) -> None:
    [reason] = refused(checking, DEAR, *rows)
    assert "check violation" in reason
    assert refused(checking, *EXCHANGE) == []
    assert refused(checking, insert(PARENT, b"11", b"11"), insert(CHILD, b"11", b"11")) == []
    assert checking.rows("SELECT id, parent_id FROM child WHERE id < 3 ORDER BY id") == [(1, 1), (2, 2)]


@pytest.mark.parametrize("rows", [EXCHANGE, CIRCLE], ids=["exchanged keys", "a circle"])
@pytest.mark.parametrize("is_first", [True, False])
def test_they_are_applied_beside_a_row_that_refers_to_none(checking: Target, rows: Sequence[Change], *, is_first: bool) -> None:
    [reason] = refused(checking, *((ORPHAN, *rows) if is_first else (*rows, ORPHAN)))
    assert "constraint 'child_parent_id_fkey'" in reason
    assert "together" not in reason


def test_many_of_them_beside_a_row_that_refers_to_none_are_set_aside_and_not_waited_for(checking: Target) -> None:
    """Both tables refuse all rows one by one for one reason, but they took them while the constraints waited."""
    keys = [b"%d" % n for n in range(1000, 1000 + MOST_REFUSALS)]
    circle = [*(insert(PARENT, key, key) for key in keys), *(insert(CHILD, key, key) for key in keys)]
    batch = [checking.messages([*circle, ORPHAN])]
    with pytest.raises(TransientError, match="one by one"):
        checking.commit(batch)
    with pytest.raises(RejectedChanges) as raised:
        checking.commit(batch)
    assert len(raised.value.rejections) == len(circle) + 1
    assert all(f"refused together with {len(circle)} more" in each.reason for each in raised.value.rejections)
