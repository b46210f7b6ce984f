"""A transaction that alters tables and is rolled back leaves nothing behind of what the session made and learnt in it."""

from __future__ import annotations

import pytest

from pgsluice.shared.wire.definition import TableGone
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import message, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "n integer")
ELSEWHERE = PublishedDefinition(TableGone("DROP TABLE", 16400, "public", "elsewhere"), None)
REFUSED = update(ORDERS, b"1", b"70000")
STAGES = "SELECT relname FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r' ORDER BY relname"


def check_knowledge(target: Target) -> None:
    """What the session takes for its own is there, and nothing that it does not know of."""
    session = target.sink._session
    assert session is not None
    there = [f'"pg_temp"."{name}"' for (name,) in session.connection.execute(STAGES).fetchall()]
    known = [stage.identifier.as_string(session.connection) for stage in session.stages._stages.values()]
    assert sorted(known) == there
    assert all(shape[0].table in session.targets for shape in session.stages._stages)


def test_stages_and_tables_are_forgotten_with_the_transaction_that_made_them(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n smallint); INSERT INTO orders VALUES (1, 1)")
    target.apply(update(ORDERS, b"1", b"2"))
    check_knowledge(target)
    batch = [[message(2, ELSEWHERE)], [message(3, REFUSED)]]
    for expected in (WriteAgain, RejectedChanges):
        with pytest.raises(expected):
            apply(target.sink, batch)
        check_knowledge(target)
        session = target.sink._session
        assert session is not None
        assert ORDERS not in session.targets
