"""Tables of the target that refuse everything: the batch waits for them, and nothing is set aside."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pgsluice.shared.errors import MissingPrivilegeError, TransientError
from pgsluice.testing.batch import write_copied
from pgsluice.testing.changes_builder import Change, copied, insert, table, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text")
OTHERS = table("public.others", "id bigint", "note text")
MANY = 150

TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today, %', NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE orders ENABLE ALWAYS TRIGGER refuse
"""
CHECK = "ALTER TABLE orders ADD CONSTRAINT closed CHECK (note IN ('fits', 'is refused')) NOT VALID"
"""Which no row of ``orders`` fulfils that has another note."""
SHORT = "ALTER TABLE orders ALTER note TYPE varchar(4)"

REFUSING = [
    pytest.param(TRIGGER, "DROP TRIGGER refuse ON orders", "raise exception, SQLSTATE P0001", id="trigger"),
    pytest.param(CHECK, "ALTER TABLE orders DROP CONSTRAINT closed", "check violation, SQLSTATE 23514", id="constraint"),
    pytest.param(SHORT, "ALTER TABLE orders ALTER note TYPE text", "string data right truncation, SQLSTATE 22001", id="type"),
]


@pytest.fixture
def orders(target: Target) -> Target:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    target.execute("CREATE TABLE others (id bigint PRIMARY KEY, note text)")
    return target


def rows(count: int, note: bytes = b"secret") -> list[Change]:
    return [insert(ORDERS, b"%d" % n, note) for n in range(count)]


def refusal_of(target: Target, *partitions: Sequence[Change]) -> TransientError | RejectedChanges:
    """What ``partitions`` come to, when the sink has looked as closely as it asks for."""
    batch = [target.messages(partition) for partition in partitions]
    while True:
        try:
            target.commit(batch)
        except WriteAgain:
            continue
        except TransientError as error:
            if "one by one" not in str(error):
                return error
        except RejectedChanges as rejected:
            return rejected
        else:
            raise AssertionError("nothing was refused")


def count_of_orders(target: Target) -> object:
    return target.rows("SELECT count(*) FROM orders")


@WITH_AND_WITHOUT_STAGES
@pytest.mark.parametrize(("refusing", "mending", "reason"), REFUSING)
def test_a_table_that_refuses_every_row_is_waited_for(orders: Target, refusing: str, mending: str, reason: str) -> None:
    orders.execute(refusing)
    for _ in range(2):
        error = refusal_of(orders, [*rows(MANY), insert(OTHERS, b"1", b"x")])
        assert isinstance(error, TransientError)
        assert (
            f"table 'public.orders' of the target refuses everything that is sent to it: the target refused it: {reason}"
            in str(error)
        )
        assert "secret" not in str(error)
    assert orders.rows("SELECT count(*) FROM others") == [(0,)]
    orders.execute(mending)
    orders.commit([orders.messages([*rows(MANY), insert(OTHERS, b"1", b"x")])])
    assert count_of_orders(orders) == [(MANY,)]


@WITH_AND_WITHOUT_STAGES
def test_a_table_that_takes_one_row_of_many_has_the_others_set_aside(orders: Target) -> None:
    orders.execute(CHECK)
    for fitting in ([*rows(MANY), insert(ORDERS, b"500", b"fits")], [insert(ORDERS, b"500", b"fits"), *rows(MANY)]):
        rejected = refusal_of(orders, fitting)
        assert isinstance(rejected, RejectedChanges)
        assert len(rejected.rejections) == MANY


def test_a_row_that_is_taken_in_another_task_counts(orders: Target) -> None:
    orders.execute(CHECK)
    rejected = refusal_of(orders, rows(MANY), [insert(ORDERS, b"500", b"fits")])
    assert isinstance(rejected, RejectedChanges)


def test_a_batch_of_one_row_and_one_of_a_few_are_set_aside(orders: Target) -> None:
    orders.execute(CHECK)
    for count in (1, 5):
        rejected = refusal_of(orders, rows(count))
        assert isinstance(rejected, RejectedChanges)
        assert len(rejected.rejections) == count


def test_rows_that_are_refused_for_two_reasons_are_set_aside(orders: Target) -> None:
    orders.execute(CHECK)
    orders.execute("ALTER TABLE orders ADD CONSTRAINT not_this CHECK (note <> 'is refused') NOT VALID")
    rejected = refusal_of(orders, [*rows(MANY), insert(ORDERS, b"500", b"is refused")])
    assert isinstance(rejected, RejectedChanges)
    assert len(rejected.rejections) == MANY + 1


def test_rows_that_are_tried_one_by_one_are_counted_together(orders: Target) -> None:
    """As where folding may have broken a unique constraint."""
    orders.execute("ALTER TABLE orders ADD COLUMN always int DEFAULT 1 UNIQUE; INSERT INTO orders VALUES (-1, 'x', 1)")
    error = refusal_of(orders, rows(MANY))
    assert isinstance(error, TransientError)
    assert "unique violation, SQLSTATE 23505" in str(error)


def test_a_table_that_took_rows_before_a_barrier_has_later_ones_set_aside(orders: Target) -> None:
    orders.execute(CHECK)
    taken = [insert(ORDERS, b"%d" % (1000 + n), b"fits") for n in range(3)]
    moved = [update(ORDERS, b"2000", b"fits", old=(b"1000", None))]
    rejected = refusal_of(orders, [*taken, *moved, *rows(MANY)])
    assert isinstance(rejected, RejectedChanges)
    assert len(rejected.rejections) == MANY


@pytest.mark.parametrize(("refusing", "mending", "reason"), REFUSING)
def test_a_table_that_refuses_every_copied_row_is_waited_for(orders: Target, refusing: str, mending: str, reason: str) -> None:
    orders.execute(refusing)
    batch = [[copied(1, ORDERS, *((b"%d" % n, b"secret") for n in range(MANY)))]]
    with pytest.raises(TransientError, match=rf"'public.orders' of the target refuses everything .*{reason}"):
        write_copied(orders.sink, batch)
    orders.execute(mending)
    write_copied(orders.sink, batch)
    assert count_of_orders(orders) == [(MANY,)]


def test_copied_rows_of_which_one_is_taken_are_set_aside(orders: Target) -> None:
    orders.execute(CHECK)
    notes = [b"secret"] * MANY + [b"fits"]
    with pytest.raises(RejectedChanges) as raised:
        write_copied(orders.sink, [[copied(1, ORDERS, *((b"%d" % n, note) for n, note in enumerate(notes)))]])
    assert len(raised.value.rejections) == MANY


def test_a_right_that_is_taken_away_is_waited_for(orders: Target, worker_role: str) -> None:
    orders.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON orders, others TO {worker_role}")
    orders.commit([orders.messages([insert(ORDERS, b"1000", b"x")])])
    orders.execute(f"REVOKE INSERT ON orders FROM {worker_role}")
    batch = [orders.messages(rows(3))]
    for _ in range(2):
        with pytest.raises(MissingPrivilegeError, match=r"does not permit applying messages .*public.orders.*42501.*: grant"):
            orders.commit(batch)
    orders.execute(f"GRANT INSERT ON orders TO {worker_role}")
    orders.commit(batch)
    assert count_of_orders(orders) == [(4,)]
