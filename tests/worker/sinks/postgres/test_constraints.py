"""Foreign keys, triggers and identity columns of the target, whatever the order in which a batch brings the rows."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity
from pgsluice.testing.batch import STREAM_CREATED, write, write_copied
from pgsluice.testing.changes_builder import copied, delete, insert, message, table, truncate, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

PARENTS = table("public.parents", "id bigint", "favourite bigint")
CHILDREN = table("public.children", "id bigint", "parent bigint")
ITEMS = table("public.items", "id bigint", "note text")

DEFERRABLE = ["DEFERRABLE INITIALLY IMMEDIATE", "DEFERRABLE INITIALLY DEFERRED"]


@pytest.fixture(params=DEFERRABLE)
def circle(request: pytest.FixtureRequest, target: Target) -> Target:
    """Two tables that refer to each other."""
    target.execute("CREATE TABLE parents (id bigint PRIMARY KEY, favourite bigint)")
    target.execute(f"CREATE TABLE children (id bigint PRIMARY KEY, parent bigint NOT NULL REFERENCES parents {request.param})")
    target.execute(f"ALTER TABLE parents ADD FOREIGN KEY (favourite) REFERENCES children {request.param}")
    return target


@WITH_AND_WITHOUT_STAGES
def test_tables_that_refer_to_each_other_are_filled_and_emptied_when_the_constraints_can_be_deferred(circle: Target) -> None:
    circle.apply(insert(CHILDREN, b"10", b"1"), insert(PARENTS, b"1", b"10"))
    circle.apply_partitions([[insert(PARENTS, b"2", b"20")]], [[insert(CHILDREN, b"20", b"2")]])
    assert circle.table("public", "parents") == [("1", "10"), ("2", "20")]
    circle.apply(delete(PARENTS, b"1", None), delete(CHILDREN, b"10", None))
    assert circle.table("public", "children") == [("20", "2")]


def test_a_deferred_violation_is_pinned_to_its_row_and_moves_nothing(circle: Target) -> None:
    batch = [circle.messages([insert(PARENTS, b"1", None), insert(CHILDREN, b"10", b"77"), insert(CHILDREN, b"11", b"1")])]
    with pytest.raises(TransientError, match="one by one"):
        circle.commit(batch)
    with pytest.raises(RejectedChanges) as caught:
        circle.commit(batch)
    (rejection,) = caught.value.rejections
    assert rejection.position.ordinal == 2
    assert "foreign key violation, SQLSTATE 23503, constraint 'children_parent_fkey'" in rejection.reason
    assert circle.table("public", "parents") == []
    assert circle.rows("SELECT sequence FROM pgsluice.applied") == [(0,)]


def test_a_truncation_between_changes_that_wait_for_a_deferred_check(circle: Target) -> None:
    circle.apply(insert(PARENTS, b"1", None), insert(CHILDREN, b"10", b"1"))
    circle.apply_partitions(
        [[insert(CHILDREN, b"20", b"1")]],
        [[truncate(PARENTS, CHILDREN)]],
        [[insert(PARENTS, b"3", None)]],
        [[truncate(CHILDREN)]],
    )
    assert (circle.table("public", "parents"), circle.table("public", "children")) == ([("3", None)], [])


def test_values_that_pass_between_rows_under_a_deferrable_unique_constraint(target: Target) -> None:
    target.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text UNIQUE DEFERRABLE)")
    target.apply(insert(ITEMS, b"1", b"a"), insert(ITEMS, b"2", b"b"))
    target.apply(update(ITEMS, b"1", b"b"), update(ITEMS, b"2", b"a"))
    assert target.table("public", "items") == [("1", "b"), ("2", "a")]


@pytest.mark.parametrize("disable_foreign_keys", [False, True])
def test_a_truncated_table_that_others_could_refer_to_is_emptied(target: Target, disable_foreign_keys: bool) -> None:
    """The source has no such foreign key, or the TRUNCATE would have failed there."""
    target.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text, number serial)")
    target.execute("CREATE TABLE tags (item bigint REFERENCES items)")
    sink = target.new_sink(disable_foreign_keys=disable_foreign_keys)
    sink.open()
    rows = (insert(ITEMS, b"1", b"a"), insert(ITEMS, b"2", b"b"))
    again = (truncate(ITEMS, restart_identity=True), insert(ITEMS, b"3", b"c"))
    sink.commit(write(sink, [target.messages(rows, again)]), STREAM_CREATED)
    assert target.table("public", "items") == [("3", "c", "1")]


def test_a_truncated_table_that_others_do_refer_to_stops_the_worker(target: Target) -> None:
    target.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text); CREATE TABLE tags (item bigint REFERENCES items)")
    target.apply(insert(ITEMS, b"1", b"a"))
    target.execute("INSERT INTO tags VALUES (1)")
    messages = target.messages([truncate(ITEMS)])
    with pytest.raises(TransientError, match="one by one"):
        target.sink.commit(write(target.sink, [messages]), STREAM_CREATED)
    with pytest.raises(TerminalError, match="foreign key violation"):
        target.sink.commit(write(target.sink, [messages]), STREAM_CREATED)
    assert target.table("public", "items") == [("1", "a")]


def test_a_cascade_of_the_target_meets_the_sources_own_deletes(target: Target) -> None:
    target.execute("CREATE TABLE parents (id bigint PRIMARY KEY, favourite bigint)")
    target.execute("CREATE TABLE children (id bigint PRIMARY KEY, parent bigint REFERENCES parents ON DELETE CASCADE)")
    target.apply(insert(PARENTS, b"1", None), insert(CHILDREN, b"10", b"1"), insert(CHILDREN, b"11", b"1"))
    target.apply(delete(PARENTS, b"1", None), delete(CHILDREN, b"10", None), delete(CHILDREN, b"11", None))
    assert target.table("public", "children") == []


@WITH_AND_WITHOUT_STAGES
def test_triggers_of_the_target_fire_unless_they_are_disabled(target: Target) -> None:
    target.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text); CREATE TABLE audit (id bigint)")
    target.execute(
        "CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO public.audit VALUES (NEW.id); RETURN NEW; END'"
    )
    target.execute("CREATE TRIGGER audited AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION audited()")
    target.apply(insert(ITEMS, b"1", b"a"))
    assert target.table("public", "audit") == [("1",)]
    quiet = target.new_sink("quiet", disable_foreign_keys=True)
    quiet.open()
    quiet.commit(write(quiet, [[message(1, insert(ITEMS, b"2", b"b"))]]), STREAM_CREATED)
    assert target.table("public", "audit") == [("1",)]
    target.execute("ALTER TABLE items ENABLE ALWAYS TRIGGER audited")
    quiet.commit(write(quiet, [[message(2, insert(ITEMS, b"3", b"c"))]]), STREAM_CREATED)
    assert target.table("public", "audit") == [("1",), ("3",)]


def test_the_key_of_an_identity_column_that_the_source_changes_asks_for_another_definition(target: Target) -> None:
    target.execute("CREATE TABLE items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
    target.apply(insert(ITEMS, b"1", b"a"), insert(ITEMS, b"2", b"b"))
    target.apply(update(ITEMS, b"1", UNCHANGED), update(ITEMS, b"2", b"c", old=(b"2", None)))
    moved = target.messages([update(ITEMS, b"3", b"a", old=(b"1", None)), update(ITEMS, b"4", UNCHANGED, old=(b"2", None))])
    receipts = write(target.sink, [moved])
    with pytest.raises(TerminalError, match=r'ALTER TABLE "public"."items" ALTER COLUMN "id" SET GENERATED BY DEFAULT; then'):
        target.sink.commit(receipts, STREAM_CREATED)
    target.execute("ALTER TABLE items ALTER COLUMN id SET GENERATED BY DEFAULT")
    target.new_sink().open()
    again = target.new_sink()
    again.open()
    again.commit(write(again, [moved]), STREAM_CREATED)
    assert target.table("public", "items") == [("3", "a"), ("4", "c")]


@pytest.mark.parametrize("key", [("id",), ()])
def test_another_identity_column_that_the_source_changes_asks_for_another_definition(
    target: Target, key: tuple[str, ...]
) -> None:
    numbered = table("public.items", "id bigint", "number bigint", "note text", key=key, identity=ReplicaIdentity.FULL)
    target.execute("CREATE TABLE items (id bigint PRIMARY KEY, number bigint GENERATED ALWAYS AS IDENTITY, note text)")
    target.apply(insert(numbered, b"1", b"7", b"a"))
    target.apply(update(numbered, b"1", b"7", b"b", old=(b"1", b"7", b"a")))
    if key:
        with pytest.raises(TerminalError, match='ALTER COLUMN "number" SET GENERATED BY DEFAULT'):
            write_copied(target.sink, [[copied(1, numbered, (b"1", b"8", b"b"))]])
    assert target.table("public", "items") == [("1", "7", "b")]
    with pytest.raises(TerminalError, match='ALTER COLUMN "number" SET GENERATED BY DEFAULT'):
        target.apply(update(numbered, b"1", b"8", b"b", old=(b"1", b"7", b"b")))
