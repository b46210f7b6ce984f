"""What the target has besides the source's rows: triggers, foreign keys that act, sequences, columns, tables that inherit.

It keeps what it has, and nothing of it takes or changes a row that the source still has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.changes_builder import Change, delete, insert, table, truncate, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from tests.waiting import wait_until
from tests.worker.sinks.postgres.conftest import Target

PARENT = table("public.parent", "id integer", "email text", "document text")
CHILD = table("public.child", "id integer", "parent_id integer")
TARGETS_OWN = """
    CREATE TABLE parent (id int PRIMARY KEY, email text UNIQUE, document text, note text DEFAULT 'mine');
    CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE);
"""
LONG = b"0123456789" * 5000


@pytest.fixture
def target(target_of_each_role: Target) -> Target:
    return target_of_each_role


def test_a_worker_whose_role_may_not_turn_foreign_keys_off_says_so(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    target.sink.open()
    assert ("the target user may not turn them off" in caplog.text) is (target.user is not None)


def test_a_changed_key_takes_no_row_that_refers_to_it(target: Target) -> None:
    """The source's foreign key acts there, and what it does arrives as changes of its own."""
    target.make(TARGETS_OWN)
    target.apply(
        *(insert(PARENT, b"%d" % n, b"%d@x" % n, b"d") for n in (1, 2, 3)),
        *(insert(CHILD, b"%d" % n, b"%d" % n) for n in (1, 2, 3)),
    )
    target.apply(
        *(update(PARENT, b"%d" % (n + 1000), b"%d@x" % n, b"d", old=(b"%d" % n, None, None)) for n in (1, 2, 3)),
        *(update(CHILD, b"%d" % n, b"%d" % (n + 1000)) for n in (1, 2, 3)),
    )
    assert target.table("public", "child") == [("1", "1001"), ("2", "1002"), ("3", "1003")]
    assert [row[0] for row in target.table("public", "parent")] == ["1001", "1002", "1003"]


def test_rows_of_partitions_follow_a_changed_key_as_they_do_at_the_source(target: Target) -> None:
    target.make(
        "CREATE TABLE parent (id int PRIMARY KEY, email text UNIQUE, document text);"
        " CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent ON UPDATE CASCADE) PARTITION BY RANGE (id);"
        " CREATE TABLE child_low PARTITION OF child FOR VALUES FROM (0) TO (100)"
    )
    target.apply(insert(PARENT, b"1", b"1@x", b"d"), insert(CHILD, b"1", b"1"))
    target.apply(update(PARENT, b"1001", b"1@x", b"d", old=(b"1", None, None)), update(CHILD, b"1", b"1001"))
    assert target.table("public", "child") == [("1", "1001")]


@pytest.mark.parametrize("document", [b"new", UNCHANGED], ids=["whole", "in part"])
def test_what_only_the_target_has_of_a_row_stays_when_its_key_changes(target: Target, document: bytes) -> None:
    target.make(f"{TARGETS_OWN} CREATE TABLE visits (parent_id int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE)")
    target.apply(insert(PARENT, b"1", b"a@x", LONG))
    target.execute("UPDATE parent SET note = 'written here'")
    target.execute("INSERT INTO visits VALUES (1)")
    target.apply(update(PARENT, b"7", b"a@x", document, old=(b"1", None, None)))
    assert target.rows("SELECT id, note FROM parent") == [(7, "written here")]
    assert len(target.table("public", "visits")) == 1


def test_keys_are_changed_in_the_order_in_which_rows_leave_them(target: Target) -> None:
    """Down a chain, around a circle, and where more than a hundred rows make room for one."""
    target.make(TARGETS_OWN)
    target.apply(*(insert(PARENT, b"%d" % n, b"%d@x" % n, b"d") for n in range(1, 201)))
    target.execute("UPDATE parent SET note = id::text")
    target.apply(
        *(update(PARENT, b"%d" % (n + 1), b"%d@x" % n, UNCHANGED, old=(b"%d" % n, None, None)) for n in range(200, 0, -1)),
        update(PARENT, b"1", b"200@x", b"d", old=(b"201", None, None)),
    )
    wanted = [(1, "200@x", "200"), *((n + 1, f"{n}@x", str(n)) for n in range(1, 200))]
    assert target.rows("SELECT id, email, note FROM parent ORDER BY id") == wanted


def test_a_row_of_the_target_alone_gives_way_to_one_whose_key_changes(target: Target) -> None:
    target.make(TARGETS_OWN)
    target.apply(insert(PARENT, b"1", b"a@x", b"d"))
    target.execute("INSERT INTO parent VALUES (7, 'other@x', 'o')")
    target.apply(update(PARENT, b"7", b"a@x", b"d", old=(b"1", None, None)))
    assert target.rows("SELECT id, email FROM parent") == [(7, "a@x")]


def test_a_deletion_waits_for_what_the_source_s_cascade_takes_in_later_messages(target: Target) -> None:
    target.make(TARGETS_OWN)
    target.apply(insert(PARENT, b"1", b"a@x", b"d"), insert(CHILD, b"1", b"1"), insert(CHILD, b"2", b"1"))
    target.apply_partitions([[delete(PARENT, b"1", None, None)]], [[delete(CHILD, b"1", None)]], [[update(CHILD, b"2", None)]])
    assert (target.table("public", "parent"), target.table("public", "child")) == ([], [("2", None)])


def refusals(target: Target, *changes: Change) -> Sequence[Rejection]:
    """As the worker finds them: it tries a batch again that may be applied in another way."""
    batch = [target.messages(changes)]
    while True:
        try:
            target.commit(batch)
            pytest.fail("nothing was refused")
        except TransientError:
            continue
        except RejectedChanges as rejected:
            return rejected.rejections


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_no_action_of_the_target_touches_a_row_that_the_source_keeps(target: Target, action: str) -> None:
    """The source has no such foreign key. Where the target's cannot be turned off, the deletion is refused."""
    target.make(TARGETS_OWN.replace("ON DELETE CASCADE", f"ON DELETE {action}"))
    target.apply(insert(PARENT, b"1", b"a@x", b"d"), insert(PARENT, b"2", b"b@x", b"d"), insert(CHILD, b"1", b"1"))
    if target.user is None:
        target.apply(delete(PARENT, b"1", None, None), delete(PARENT, b"2", None, None))
    else:
        refused = refusals(target, delete(PARENT, b"1", None, None), delete(PARENT, b"2", None, None))
        assert [(each.position.ordinal, "child_parent_id_fkey" in each.reason) for each in refused] == [(1, True)]
    assert target.table("public", "child") == [("1", "1")]


def test_rows_of_one_table_that_refer_to_each_other_go_together(target: Target) -> None:
    target.make("CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES child ON DELETE CASCADE)")
    target.apply(insert(CHILD, b"1", None), insert(CHILD, b"2", b"1"), insert(CHILD, b"3", b"2"))
    target.apply(delete(CHILD, b"1", None), delete(CHILD, b"2", None), update(CHILD, b"3", None))
    assert target.table("public", "child") == [("3", None)]


def test_rows_that_only_the_target_has_follow_its_own_foreign_key(new_target: Callable[..., Target], ordinary_role: str) -> None:
    target = new_target()
    target.write_as(ordinary_role, disable_foreign_keys=None)
    target.make(f"{TARGETS_OWN} CREATE TABLE visits (parent_id int REFERENCES parent ON DELETE CASCADE)")
    target.apply(insert(PARENT, b"1", b"a@x", b"d"))
    target.execute("INSERT INTO visits VALUES (1)")
    target.apply(delete(PARENT, b"1", None, None))
    assert target.table("public", "visits") == []


COUNTING = """
    CREATE TABLE fired (what text);
    CREATE TABLE parent (id int PRIMARY KEY, email text UNIQUE, document text, row_no smallserial);
    CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO public.fired VALUES (tg_when || '' '' || tg_op); RETURN coalesce(new, old); END';
    CREATE TRIGGER before BEFORE INSERT OR UPDATE OR DELETE ON parent FOR EACH ROW EXECUTE FUNCTION count_it()
"""


def fired(target: Target) -> list[str]:
    found = [what for (what,) in target.rows("SELECT what FROM fired ORDER BY what")]
    target.execute("TRUNCATE fired")
    return found


@pytest.mark.parametrize("version_has_merge", [True, False])
def test_an_update_is_an_update_to_the_triggers_of_the_target(
    target: Target, version_has_merge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or they do not fire at all."""
    if not version_has_merge:
        monkeypatch.setattr("pgsluice.worker.sinks.postgres.merge.staging.HAS_MERGE", 1_000_000)
    target.make(COUNTING)
    target.apply(insert(PARENT, b"1", b"a@x", b"d"), insert(PARENT, b"2", b"b@x", b"d"))
    assert fired(target) == (["BEFORE INSERT", "BEFORE INSERT"] if target.user else [])
    target.apply(update(PARENT, b"1", b"c@x", b"d"))
    assert fired(target) == (["BEFORE UPDATE"] if target.user else [])
    target.apply(update(PARENT, b"7", b"c@x", b"d", old=(b"1", None, None)))
    assert fired(target) == (["BEFORE UPDATE"] if target.user else [])
    target.apply(delete(PARENT, b"7", None, None), update(PARENT, b"2", b"e@x", b"d"), insert(PARENT, b"3", b"f@x", b"d"))
    assert fired(target) == (["BEFORE DELETE", "BEFORE INSERT", "BEFORE UPDATE"] if target.user else [])


@pytest.mark.parametrize("version_has_merge", [True, False])
def test_updates_take_no_value_of_a_sequence(target: Target, version_has_merge: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not version_has_merge:
        monkeypatch.setattr("pgsluice.worker.sinks.postgres.merge.staging.HAS_MERGE", 1_000_000)
    target.make(COUNTING)
    target.apply(*(insert(PARENT, b"%d" % n, None, b"d") for n in range(10)))
    for _ in range(3):
        target.apply(*(update(PARENT, b"%d" % n, None, b"e") for n in range(10)))
    target.apply(*(update(PARENT, b"%d" % (100 + n), None, b"e", old=(b"%d" % n, None, None)) for n in range(10)))
    assert target.rows("SELECT last_value FROM parent_row_no_seq") == [(10,)]


INHERITED = """
    CREATE TABLE parent (id int PRIMARY KEY, email text, document text);
    CREATE TABLE heirs () INHERITS (parent);
    INSERT INTO heirs VALUES (1, 'heir', 'h'), (2, 'heir', 'h'), (3, 'heir', 'h')
"""


def test_rows_of_tables_that_inherit_are_left_alone(target: Target) -> None:
    target.make(INHERITED)
    target.apply(insert(PARENT, b"1", b"a", b"d"), insert(PARENT, b"2", b"b", b"d"), insert(PARENT, b"3", b"c", b"d"))
    target.apply(
        update(PARENT, b"1", b"A", UNCHANGED),
        delete(PARENT, b"2", None, None),
        update(PARENT, b"9", b"C", b"D", old=(b"3", None, None)),
    )
    assert target.rows("SELECT id, email FROM ONLY parent ORDER BY id") == [(1, "A"), (9, "C")]
    target.apply(truncate(PARENT))
    assert target.rows("SELECT id, email FROM parent ORDER BY id") == [(1, "heir"), (2, "heir"), (3, "heir")]
    target.make("CREATE TABLE visits (parent_id int REFERENCES parent)")  # so that the target refuses TRUNCATE
    target.apply(insert(PARENT, b"7", b"g", b"d"), truncate(PARENT))
    assert target.rows("SELECT id, email FROM parent ORDER BY id") == [(1, "heir"), (2, "heir"), (3, "heir")]


def test_a_foreign_key_that_is_made_while_rows_are_applied_does_not_act_on_them(
    new_target: Callable[..., Target], ordinary_role: str
) -> None:
    """Whoever owns the target's tables alters them when they like."""
    target = new_target()
    target.write_as(ordinary_role, disable_foreign_keys=None)
    target.make(
        "CREATE TABLE parent (id int PRIMARY KEY, email text, document text);"
        " CREATE TABLE child (id int PRIMARY KEY, parent_id int)"
    )
    target.apply(
        *(insert(PARENT, b"%d" % n, None, None) for n in (1, 2, 3)), insert(CHILD, b"1", b"1"), insert(CHILD, b"2", b"2")
    )
    target.apply(delete(PARENT, b"3", None, None))
    target.make(
        "ALTER TABLE child ADD CONSTRAINT late FOREIGN KEY (parent_id) REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE"
    )
    [refused] = refusals(target, delete(PARENT, b"1", None, None))
    assert "late" in refused.reason
    with pytest.raises(TerminalError, match="late"):
        target.apply(update(PARENT, b"20", None, None, old=(b"2", None, None)))
    assert target.table("public", "child") == [("1", "1"), ("2", "2")]


@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_rules_of_a_target_s_table_hinder_nothing(target: Target, event: str) -> None:
    target.make(
        "CREATE TABLE parent (id int PRIMARY KEY, email text, document text); CREATE TABLE ruled (what text);"
        f" CREATE RULE own AS ON {event} TO parent DO ALSO INSERT INTO ruled VALUES ('{event}')"
    )
    target.apply(insert(PARENT, b"1", b"a", b"d"), insert(PARENT, b"2", b"b", b"d"))
    target.apply(update(PARENT, b"1", b"A", b"d"), insert(PARENT, b"3", b"c", b"d"), update(PARENT, b"4", b"new", b"d"))
    target.apply(update(PARENT, b"9", b"B", b"d", old=(b"2", None, None)), delete(PARENT, b"3", None, None))
    assert target.rows("SELECT id, email FROM parent ORDER BY id") == [(1, "A"), (4, "new"), (9, "B")]


@pytest.mark.parametrize(
    "change", [insert(PARENT, b"5", b"ours", b"d"), update(PARENT, b"5", b"ours", b"d")], ids=["insert", "update"]
)
def test_a_row_that_another_session_inserts_meanwhile_gives_way(target: Target, change: Change) -> None:
    target.make("CREATE TABLE parent (id int PRIMARY KEY, email text, document text)")
    target.apply(insert(PARENT, b"1", b"a", b"d"))
    waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with target.database.connect(autocommit=False) as other, ThreadPoolExecutor(1) as thread:
        other.execute("INSERT INTO parent VALUES (5, 'theirs')")
        applied = thread.submit(target.apply, change)
        wait_until(lambda: target.rows(waits), what="the worker's wait")
        other.commit()
        applied.result()
    assert target.rows("SELECT id, email FROM parent ORDER BY id") == [(1, "a"), (5, "ours")]


def test_a_foreign_key_to_a_partition_does_not_act_either(new_target: Callable[..., Target], ordinary_role: str) -> None:
    target = new_target()
    target.write_as(ordinary_role, disable_foreign_keys=None)
    target.make(
        "CREATE TABLE parent (id int PRIMARY KEY, email text, document text) PARTITION BY RANGE (id);"
        " CREATE TABLE parent_low PARTITION OF parent FOR VALUES FROM (0) TO (100);"
        " CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent_low ON DELETE CASCADE ON UPDATE CASCADE)"
    )
    target.apply(*(insert(PARENT, b"%d" % n, None, None) for n in (1, 2)), *(insert(CHILD, n, n) for n in (b"1", b"2")))
    [refused] = refusals(target, delete(PARENT, b"1", None, None))
    assert "child_parent_id_fkey" in refused.reason
    with pytest.raises(TerminalError, match="child_parent_id_fkey"):
        target.apply(update(PARENT, b"20", None, None, old=(b"2", None, None)))
    assert target.table("public", "child") == [("1", "1"), ("2", "2")]


def test_one_who_reads_several_tables_in_a_transaction_does_not_keep_truncations_out(target: Target) -> None:
    target.make(
        "CREATE TABLE parent (id int PRIMARY KEY, email text, document text);"
        " CREATE TABLE child (id int PRIMARY KEY, parent_id int)"
    )
    target.apply(insert(PARENT, b"1", b"a", b"d"), insert(CHILD, b"1", b"1"))
    target.execute(f"ALTER DATABASE {target.database.settings.dbname} SET deadlock_timeout = '2s'")
    target.sink.open()
    batch = [target.messages([truncate(PARENT), truncate(CHILD), insert(PARENT, b"2", b"b", b"d")])]
    waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with target.database.connect(autocommit=False) as reader, ThreadPoolExecutor(1) as thread:
        reader.execute("SET deadlock_timeout = '1h'")
        reader.execute("SELECT FROM child")
        applied = thread.submit(target.commit, batch)
        wait_until(lambda: target.rows(waits), what="the worker's wait")
        reader.execute("SELECT FROM parent")
        with pytest.raises(TransientError):
            applied.result()
        target.commit(batch)
    assert (target.table("public", "parent"), target.table("public", "child")) == ([("2", "b", "d")], [])
