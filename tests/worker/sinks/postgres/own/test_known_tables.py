"""Tables that the source renames: their rows never go to a second table, whoever was renamed first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import replay_name
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity, Table
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import delete, insert, restart, table, truncate, update
from pgsluice.worker.dead_letters.rejection import RejectedChanges
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables, TableDestination, known_columns
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

NOTES = table("public.notes", "id bigint", "note text")
RENAMED = replace(NOTES, name="remarks")
MOVED = replace(NOTES, schema="archive")


def tables(target: Target) -> list[str]:
    found = target.rows(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema',"
        " 'pgsluice') AND schemaname NOT LIKE 'pg_temp%' ORDER BY 1"
    )
    return [name for (name,) in found]


def start_again(target: Target) -> None:
    """Another process takes over."""
    target.sink.close()
    target.sink.open()


def refusal(target: Target, *changes: object) -> TerminalError:
    """Of changes that go by a new name; whatever was refused is to be applied again."""
    with pytest.raises(TerminalError) as raised:
        target.apply(*changes)  # type: ignore[arg-type]
    target.sequence -= 1
    return raised.value


def test_a_renamed_table_stops_the_worker_also_when_another_one_has_its_name_and_its_place(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    target.apply(insert(replace(NOTES, oid=NOTES.oid + 1), b"2", b"b"))
    assert "'public.notes' of the source is called 'public.remarks' now" in str(refusal(target, insert(RENAMED, b"3", b"c")))
    assert tables(target) == ["public.notes"]


@WITH_AND_WITHOUT_STAGES
@pytest.mark.parametrize(
    ("renamed", "statement"),
    [
        (RENAMED, 'ALTER TABLE "public"."notes" RENAME TO "remarks"'),
        (MOVED, 'ALTER TABLE "public"."notes" SET SCHEMA "archive"'),
        (
            replace(MOVED, name="remarks"),
            'ALTER TABLE "public"."notes" SET SCHEMA "archive"; ALTER TABLE "archive"."notes" RENAME TO "remarks"',
        ),
    ],
    ids=["renamed", "other schema", "both"],
)
def test_a_renamed_table_stops_the_worker_until_the_target_s_is_renamed_too(
    target: Target, renamed: Table, statement: str
) -> None:
    target.execute("CREATE SCHEMA archive")
    target.apply(insert(NOTES, b"1", b"a"), insert(NOTES, b"2", b"b"))
    batch = insert(NOTES, b"3", b"c"), update(renamed, b"1", b"A"), delete(renamed, b"2", None)
    for _ in range(2):
        error = refusal(target, *batch)
        assert f"rename it there: {statement}; or give '{renamed.qualified_name}' a route to 'public.notes'" in error.remedy
        assert tables(target) == ["public.notes"]
        start_again(target)
    target.execute(statement)
    target.apply(*batch)
    assert target.table(renamed.schema, renamed.name) == [("1", "A"), ("3", "c")]
    start_again(target)
    target.apply(insert(NOTES, b"4", b"d"), delete(renamed, b"1", None))
    assert target.table(renamed.schema, renamed.name) == [("3", "c"), ("4", "d")]
    assert tables(target) == [renamed.qualified_name]


@WITH_AND_WITHOUT_STAGES
def test_changes_of_one_row_under_both_names_stay_in_order(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"), insert(NOTES, b"2", b"b"))
    target.execute("ALTER TABLE notes RENAME TO remarks")
    target.apply(delete(NOTES, b"1", None), delete(NOTES, b"2", None), insert(RENAMED, b"1", b"again"))
    assert target.table("public", "remarks") == [("1", "again")]
    target.apply(insert(NOTES, b"3", b"c"), truncate(RENAMED), insert(RENAMED, b"4", b"d"))
    assert target.table("public", "remarks") == [("4", "d")]


@WITH_AND_WITHOUT_STAGES
def test_a_route_to_the_old_name_takes_a_renamed_table_there(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    refusal(target, delete(RENAMED, b"1", None))
    routed = replace(NOTES, origin=("public", "remarks"))
    target.apply(insert(NOTES, b"2", b"b"), delete(routed, b"1", None))
    assert target.table("public", "notes") == [("2", "b")]
    refusal(target, truncate(replace(NOTES, name="third")))
    target.apply(truncate(replace(NOTES, origin=("public", "third"))))
    assert target.table("public", "notes") == []
    assert tables(target) == ["public.notes"]


@WITH_AND_WITHOUT_STAGES
def test_a_route_that_is_given_or_taken_away_is_no_rename(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    routed = replace(NOTES, name="notes_v2", origin=("public", "notes"))
    target.apply(insert(NOTES, b"2", b"b"), insert(routed, b"2", b"b"))
    target.apply(insert(NOTES, b"3", b"c"))
    assert tables(target) == ["public.notes", "public.notes_v2"]


@WITH_AND_WITHOUT_STAGES
def test_a_target_that_was_renamed_first_keeps_getting_the_rows(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("ALTER TABLE notes RENAME TO remarks")
    start_again(target)
    target.apply(insert(NOTES, b"2", b"b"))
    target.apply(update(RENAMED, b"1", b"A"))
    assert target.table("public", "remarks") == [("1", "A"), ("2", "b")]
    assert tables(target) == ["public.remarks"]


@WITH_AND_WITHOUT_STAGES
def test_a_target_that_a_person_made_and_renamed_keeps_getting_the_rows(target: Target) -> None:
    target.execute("CREATE TABLE notes (id bigint PRIMARY KEY, note text)")
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("ALTER TABLE notes RENAME TO remarks")
    start_again(target)
    target.apply(insert(NOTES, b"2", b"b"))
    assert target.table("public", "remarks") == [("1", "a"), ("2", "b")]
    assert tables(target) == ["public.remarks"]


@WITH_AND_WITHOUT_STAGES
def test_a_table_of_the_other_name_is_not_taken_for_the_renamed_one(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("CREATE TABLE remarks (id bigint PRIMARY KEY, note text)")
    assert (
        "away with the other table of that name, 'public.remarks', first" in refusal(target, delete(RENAMED, b"1", None)).remedy
    )
    target.execute("DROP TABLE remarks; ALTER TABLE notes RENAME TO remarks")
    target.apply(delete(RENAMED, b"1", None))
    assert target.table("public", "remarks") == []


@WITH_AND_WITHOUT_STAGES
def test_a_table_and_another_that_takes_over_its_name_stay_two(target: Target) -> None:
    """As migrations do: the old one is renamed away, a new one is made."""
    target.apply(insert(NOTES, b"1", b"old"))
    successor = replace(NOTES, oid=4711)
    batch = insert(NOTES, b"2", b"old"), insert(successor, b"1", b"new"), update(RENAMED, b"1", b"OLD")
    refusal(target, *batch)
    target.execute("ALTER TABLE notes RENAME TO remarks")
    start_again(target)
    target.apply(*batch)
    assert target.table("public", "remarks") == [("1", "OLD"), ("2", "old")]
    assert target.table("public", "notes") == [("1", "new")]


@WITH_AND_WITHOUT_STAGES
def test_oids_of_a_target_that_was_restored_from_a_dump_mean_nothing(target: Target) -> None:
    """They are given out anew there: what was one table's may be another's."""
    others = table("public.others", "id bigint", "note text")
    target.apply(insert(NOTES, b"1", b"a"), insert(others, b"1", b"b"))
    exchange_oids(target)
    target.apply(insert(NOTES, b"2", b"c"))
    assert "rename it there" in refusal(target, delete(RENAMED, b"1", None)).remedy
    assert target.table("public", "notes") == [("1", "a"), ("2", "c")]
    exchange_oids(target)
    target.execute("DROP TABLE notes")
    target.apply(insert(NOTES, b"3", b"d"))
    assert target.table("public", "notes") == [("3", "d")]
    assert target.table("public", "others") == [("1", "b")]


def exchange_oids(target: Target) -> None:
    """As they may be after a restore, when another process begins."""
    target.execute(
        "UPDATE pgsluice.tables SET target_database = 'before', target_oid = CASE table_name WHEN 'notes'"
        " THEN 'others'::regclass ELSE 'notes'::regclass END::oid"
    )
    start_again(target)


@WITH_AND_WITHOUT_STAGES
def test_a_table_that_was_put_in_the_place_of_a_renamed_one_takes_its_rows(target: Target) -> None:
    """At the target, while the source's keeps its name."""
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("ALTER TABLE notes RENAME TO notes_old; CREATE TABLE notes (id bigint PRIMARY KEY, note text)")
    start_again(target)
    target.apply(insert(NOTES, b"2", b"b"))
    assert target.table("public", "notes") == [("2", "b")]
    assert target.table("public", "notes_old") == [("1", "a")]


@WITH_AND_WITHOUT_STAGES
def test_a_renamed_table_is_made_anew_when_its_rows_are_nowhere_any_more(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("DROP TABLE notes")
    target.apply(insert(RENAMED, b"2", b"b"))
    assert target.table("public", "remarks") == [("2", "b")]
    assert tables(target) == ["public.remarks"]


def test_a_worker_that_begins_anew_remembers_nothing(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("DELETE FROM pgsluice.applied")
    start_again(target)
    target.sequence = 0
    target.apply(insert(RENAMED, b"1", b"a"))
    assert tables(target) == ["public.notes", "public.remarks"]


@WITH_AND_WITHOUT_STAGES
def test_a_letter_from_before_the_rename_is_replayed_into_the_renamed_table(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"))
    target.execute("ALTER TABLE notes RENAME TO remarks")
    target.apply(insert(RENAMED, b"2", b"b"))
    replay = Target(target.database, target.inline_bytes)
    try:
        replay._sink = replay.new_sink(replay_name("postgres"))
        replay.sink.open()
        replay.apply(insert(NOTES, b"3", b"c"))
    finally:
        replay.close()
    assert target.table("public", "remarks") == [("1", "a"), ("2", "b"), ("3", "c")]
    assert tables(target) == ["public.remarks"]


@WITH_AND_WITHOUT_STAGES
def test_a_renamed_column_stops_the_worker_until_the_target_s_is_renamed_too(target: Target) -> None:
    """The batch that was refused holds changes of before the rename, which go to the same column then."""
    before = table("public.notes", "id bigint", "note text", "extra text", key=("id",))
    after = table("public.notes", "id bigint", "body text", "extra text", key=("id",))
    target.apply(insert(before, b"1", b"a", b"x"), insert(before, b"2", b"b", b"x"))
    batch = update(before, b"1", b"A", UNCHANGED), insert(before, b"3", b"c", b"x"), update(after, b"2", b"B", UNCHANGED)
    for _ in range(2):
        error = refusal(target, *batch)
        assert error.fact == "table 'public.notes' at the target has no column 'body'"
        assert 'ALTER TABLE "public"."notes" RENAME COLUMN "note" TO "body")' in error.remedy
        start_again(target)
    target.execute("ALTER TABLE notes RENAME COLUMN note TO body")
    target.apply(*batch)
    assert target.table("public", "notes") == [("1", "A", "x"), ("2", "B", "x"), ("3", "c", "x")]
    start_again(target)
    target.apply(delete(before, b"1", None, None), update(after, b"2", b"C", b"y"))
    assert target.table("public", "notes") == [("2", "C", "y"), ("3", "c", "x")]


def test_two_versions_of_a_table_that_come_together_are_both_remembered(target: Target) -> None:
    before = table("public.notes", "id bigint", "note text", key=("id",))
    after = table("public.notes", "id bigint", "body text", key=("id",))
    known, columns = KnownTables.of("orders", "postgres"), [{"id": 1, "note": 2}, {"id": 1, "body": 2}]
    start_again(target)  # makes the memory
    with target.database.connect() as connection:
        known.remember(
            connection, [TableDestination(version, 7, its) for version, its in zip((before, after), columns, strict=True)]
        )
        assert known_columns(after, 7, known.read(connection, [after])) == {"id": 1, "note": 2, "body": 2}


@WITH_AND_WITHOUT_STAGES
def test_a_renamed_key_column_and_table_are_found_again(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"), insert(NOTES, b"2", b"b"))
    target.execute("ALTER TABLE notes RENAME TO remarks; ALTER TABLE remarks RENAME COLUMN id TO number")
    start_again(target)
    after = replace(RENAMED, columns=(replace(NOTES.columns[0], name="number"), NOTES.columns[1]))
    target.apply(
        delete(NOTES, b"1", None),
        insert(NOTES, b"3", b"c"),
        update(after, b"2", b"B"),
        update(after, b"4", b"C", old=(b"3", None)),
    )
    assert target.table("public", "remarks") == [("2", "B"), ("4", "C")]


@WITH_AND_WITHOUT_STAGES
def test_a_column_that_is_made_anew_with_another_type_takes_its_rows_when_the_target_s_is(target: Target) -> None:
    before = table("public.notes", "id bigint", "a text", "b integer")
    after = table("public.notes", "id bigint", "b text")
    target.apply(insert(before, b"1", b"a", b"7"), insert(before, b"2", b"a", b"8"))
    batch = update(before, b"2", b"A", b"9"), insert(after, b"3", b"three"), update(after, b"1", b"one")
    with pytest.raises(RejectedChanges):
        target.apply(*batch)
    target.sequence -= 1
    target.execute("ALTER TABLE notes ALTER b TYPE text")
    target.apply(*batch)
    assert target.table("public", "notes") == [("1", "a", "one"), ("2", "A", "9"), ("3", None, "three")]


def test_what_a_table_missed_is_forgotten_when_it_is_filled_anew(target: Target) -> None:
    target.apply(insert(NOTES, b"1", b"a"), update(NOTES, b"7", UNCHANGED))
    target.apply(update(NOTES, b"7", UNCHANGED), delete(NOTES, b"8", None))
    assert [(each.source, each.changes) for each in target.sink.missed()] == [(("public", "notes"), 3)]
    apply_copied(target.sink, [[restart(1, NOTES)]])
    assert target.sink.missed() == []


def test_a_null_is_found_in_a_column_that_the_source_made_not_null_since(target: Target) -> None:
    keyless = table("public.keyless", "id bigint", "note text", key=(), identity=ReplicaIdentity.FULL)
    target.apply(insert(keyless, b"1", None), insert(keyless, b"2", b"b"))
    columns = tuple(replace(column, not_null=True) for column in keyless.columns)
    target.apply(delete(replace(keyless, columns=columns), b"1", None))
    assert target.table("public", "keyless") == [("2", "b")]
    assert target.sink.missed() == []
