"""Every policy of every kind: what it does to a real target, or what the person is told whom it asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pgsluice.shared.broker.definition_log import DefinitionOutcome
from pgsluice.shared.wire.definition import (
    DefinitionEvent,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableDefinition,
    TableGone,
    TableRewritten,
    TypeAttribute,
    TypeDefined,
)
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition
from pgsluice.testing.changes_builder import table
from pgsluice.worker.definitions.arrivals import Arrival
from pgsluice.worker.definitions.judgement import judge
from pgsluice.worker.definitions.policy import ACTIONS, DefinitionAction, DefinitionKind, Policies
from pgsluice.worker.sinks.postgres.definitions.alteration import Alteration
from pgsluice.worker.sinks.postgres.own.known_tables import KnownTables, TableDestination
from pgsluice.worker.sinks.postgres.own.own_tables import ensure_tables
from pgsluice.worker.sinks.sink import DefinitionUse
from tests.servers import Database
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, partition, with_columns

TYPES = "CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (a integer);"
TARGET = f"{TYPES} CREATE TABLE t (id bigint PRIMARY KEY, note text NOT NULL, n integer)"
ROWS = "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)"

N = column(3, "n", type_oid=23, type_name="integer")
NEEDED = replace(NOTE, not_null=True)
SOURCE = with_columns(ID, NEEDED, N)
PARTS = replace(SOURCE, partitions=(partition(1, "p"),))
MOOD = TypeDefined("ALTER TYPE", 7, "public", "mood", "e", "", (EnumLabel(8, "sad"),))
PAIR = TypeDefined("ALTER TYPE", 10, "public", "pair", "c", "", (), (TypeAttribute(1, "a", 23, "integer"),))

COLUMNS = """
SELECT string_agg(
    attname || ' ' || format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN '!' ELSE '' END, ', ' ORDER BY attnum)
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
AS_IT_WAS = "id bigint!, note text!, n integer"


@dataclass(frozen=True)
class Case:
    """What the source did, and what its table ``place`` looks like at the target, or what ``query`` finds there."""

    event: DefinitionEvent
    was: Defined | None
    found: Any
    query: Callable[[Database], Any] | str = "t"


def altered(*columns: object, **changed: Any) -> TableDefined:
    return TableDefined("ALTER TABLE", replace(SOURCE, columns=columns, **changed))  # type: ignore[arg-type]


def ids(target: Database) -> list[int]:
    return [row[0] for row in target.execute("SELECT id FROM t ORDER BY id")]


def labels(target: Database) -> list[str]:
    return [row[0] for row in target.execute("SELECT unnest(enum_range(NULL::mood))::text")]


def attributes(target: Database) -> str:
    query = (
        "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'pair'::regclass AND NOT attisdropped"
    )
    return f"({target.execute(query)[0][0]})"


def primary_key(target: Database) -> list[str]:
    key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass AND contype = 'p'"
    return [row[0] for row in target.execute(key)]


ADDED = altered(ID, NEEDED, N, column(4, "more", missing="7"))
DROPPED = altered(ID, N)
RENAMED = altered(ID, replace(NEEDED, name="remark"), N)
WIDENED = altered(ID, NEEDED, replace(N, type_oid=20, type_name="bigint"))
MOVED = altered(*SOURCE.columns, name="u")
RELAXED = altered(ID, replace(NEEDED, not_null=False), N)
REKEYED = altered(
    replace(ID, primary_key_position=None), NEEDED, replace(N, primary_key_position=1, not_null=True), identity_columns=(3,)
)
LABELLED = replace(MOOD, labels=(EnumLabel(8, "blue"), EnumLabel(9, "glad")))
WIDER_PAIR = replace(PAIR, attributes=(TypeAttribute(1, "a", 23, "integer"), TypeAttribute(2, "b", 25, "text")))
DETACHED = TableDefined("ALTER TABLE", SOURCE)
GONE = TableGone("DROP TABLE", TABLE.oid, "public", "t")
FOR_EACH_ROW = TableRewritten("ALTER TABLE", TABLE.oid, "public", "t", 2)
REWRITTEN = TableRewritten("ALTER TABLE", TABLE.oid, "public", "t", 4)
UNKNOWN = DefinitionUnknown("ALTER TABLE", "XX000")

APPLY, IGNORE, KEEP = DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.KEEP
DONE: dict[tuple[DefinitionKind, DefinitionAction], Case] = {
    (DefinitionKind.ADD_COLUMN, APPLY): Case(ADDED, SOURCE, AS_IT_WAS + ", more text"),
    (DefinitionKind.ADD_COLUMN, IGNORE): Case(ADDED, SOURCE, AS_IT_WAS),
    (DefinitionKind.DROP_COLUMN, APPLY): Case(DROPPED, SOURCE, "id bigint!, n integer"),
    (DefinitionKind.DROP_COLUMN, KEEP): Case(DROPPED, SOURCE, "id bigint!, note text, n integer"),
    (DefinitionKind.RENAME_COLUMN, APPLY): Case(RENAMED, SOURCE, "id bigint!, remark text!, n integer"),
    (DefinitionKind.RENAME_COLUMN, IGNORE): Case(RENAMED, SOURCE, AS_IT_WAS),
    (DefinitionKind.ALTER_TYPE, APPLY): Case(WIDENED, SOURCE, "id bigint!, note text!, n bigint"),
    (DefinitionKind.ALTER_TYPE, IGNORE): Case(WIDENED, SOURCE, AS_IT_WAS),
    (DefinitionKind.RENAME_TABLE, APPLY): Case(MOVED, SOURCE, AS_IT_WAS, "u"),
    (DefinitionKind.RENAME_TABLE, IGNORE): Case(MOVED, SOURCE, AS_IT_WAS),
    (DefinitionKind.NOT_NULL, APPLY): Case(RELAXED, SOURCE, "id bigint!, note text, n integer"),
    (DefinitionKind.NOT_NULL, IGNORE): Case(RELAXED, SOURCE, AS_IT_WAS),
    (DefinitionKind.KEY, APPLY): Case(REKEYED, SOURCE, ["PRIMARY KEY (n)"], primary_key),
    (DefinitionKind.KEY, IGNORE): Case(REKEYED, SOURCE, ["PRIMARY KEY (id)"], primary_key),
    (DefinitionKind.ENUM, APPLY): Case(LABELLED, MOOD, ["blue", "glad"], labels),
    (DefinitionKind.ENUM, IGNORE): Case(LABELLED, MOOD, ["sad"], labels),
    (DefinitionKind.TYPE, APPLY): Case(WIDER_PAIR, PAIR, "(a,b)", attributes),
    (DefinitionKind.TYPE, IGNORE): Case(WIDER_PAIR, PAIR, "(a)", attributes),
    (DefinitionKind.VOLATILE_DEFAULT, DefinitionAction.NULL): Case(FOR_EACH_ROW, SOURCE, AS_IT_WAS),
    (DefinitionKind.REWRITE, DefinitionAction.CAST): Case(REWRITTEN, SOURCE, AS_IT_WAS),
    (DefinitionKind.REWRITE, IGNORE): Case(REWRITTEN, SOURCE, AS_IT_WAS),
    (DefinitionKind.ATTACH_PARTITION, IGNORE): Case(TableDefined("ALTER TABLE", PARTS), SOURCE, [1, 2], ids),
    (DefinitionKind.DETACH_PARTITION, KEEP): Case(DETACHED, PARTS, [1, 2], ids),
    (DefinitionKind.DETACH_PARTITION, DefinitionAction.DELETE): Case(DETACHED, PARTS, [2], ids),
    (DefinitionKind.DROP_TABLE, KEEP): Case(GONE, SOURCE, AS_IT_WAS),
    (DefinitionKind.DROP_TABLE, DefinitionAction.DROP): Case(GONE, SOURCE, None),
    (DefinitionKind.UNKNOWN, IGNORE): Case(UNKNOWN, None, AS_IT_WAS),
}
"""What is done without a person."""

EVENTS: dict[DefinitionKind, tuple[DefinitionEvent, Defined | None]] = {
    **{kind: (case.event, case.was) for (kind, _), case in DONE.items()},
    DefinitionKind.ATTACH_PARTITION: (TableDefined("ALTER TABLE", PARTS), SOURCE),
}
ASKING = [
    (kind, action)
    for kind, actions in ACTIONS.items()
    for action in actions
    if action in (DefinitionAction.STOP, DefinitionAction.RECOPY)
]


def test_every_policy_of_every_kind_is_tried() -> None:
    assert {*DONE, *ASKING} == {(kind, action) for kind, actions in ACTIONS.items() for action in actions}


def arrival(event: DefinitionEvent, was: Defined | None) -> Arrival:
    return Arrival(7, Position(LSN(0x5000), 3), 1_000_000, PublishedDefinition(event, was))


@pytest.mark.parametrize(("kind", "action"), ASKING)
def test_a_person_is_told_of_what_and_where_and_what_to_do(kind: DefinitionKind, action: DefinitionAction) -> None:
    met = arrival(*EVENTS[kind])
    judgement = judge(met, Policies.parse("apply", {kind.value: action.value}), DefinitionUse.ALTERS)
    assert judgement.outcomes == (DefinitionOutcome.STOPPED,)
    said = str(judgement.stop)
    assert "at 0/5000:3, committed 2000-01-01T00:00:01" in said
    assert "nothing of the transaction was applied" in said
    assert "'pgsluice ddl accept 0/5000:3'" in said
    if kind not in (DefinitionKind.UNKNOWN, DefinitionKind.ENUM, DefinitionKind.TYPE):
        assert "public.t" in said
    if action is DefinitionAction.RECOPY:
        assert "--mode copy-and-stream --recopy public.t" in said


@pytest.mark.parametrize("kind", DefinitionKind)
@pytest.mark.parametrize(
    ("use", "outcome"),
    [(DefinitionUse.PASSES_ON, DefinitionOutcome.PASSED_ON), (DefinitionUse.PASSES_OVER, DefinitionOutcome.PASSED_OVER)],
)
def test_a_sink_that_alters_nothing_needs_a_person_only_where_that_was_asked_for(
    kind: DefinitionKind, use: DefinitionUse, outcome: DefinitionOutcome
) -> None:
    met = arrival(*EVENTS[kind])
    for policies in (Policies(), Policies.parse("ignore", {})):
        assert judge(met, policies, use).stop is None
        assert judge(met, policies, use).outcomes == (outcome,)
    assert judge(met, Policies.parse("stop", {}), use).stop is not None


def remembered(target: Database) -> KnownTables:
    """The source's table went to ``t``."""
    known_tables = KnownTables.of("group", "worker")
    with target.connect() as connection:
        ensure_tables(connection)
        [(oid,)] = connection.execute("SELECT 't'::regclass::oid::bigint").fetchall()
        there = replace(table("public.t", "id bigint", "note text", "n integer"), oid=TABLE.oid)
        known_tables.remember(connection, [TableDestination(there, oid, {"id": 1, "note": 2, "n": 3})])
    return known_tables


def apply(target: Database, policies: Policies, event: DefinitionEvent, was: Defined | None) -> KnownTables:
    known_tables = remembered(target)
    with target.connect() as connection, connection.transaction():
        Alteration(connection, known_tables, policies).apply(PublishedDefinition(event, was))
    return known_tables


@pytest.mark.parametrize(("kind", "action"), [*DONE])
def test_a_policy_is_done_at_the_target(target_database: Database, kind: DefinitionKind, action: DefinitionAction) -> None:
    case = DONE[kind, action]
    policies = Policies.parse("apply", {kind.value: action.value})
    assert judge(arrival(case.event, case.was), policies, DefinitionUse.ALTERS).stop is None
    target_database.execute(TARGET)
    target_database.execute(ROWS)
    apply(target_database, policies, case.event, case.was)
    query = case.query
    found = target_database.execute(COLUMNS, [query])[0][0] if isinstance(query, str) else query(target_database)
    assert found == case.found


def test_what_a_person_did_is_not_done_again(target_database: Database) -> None:
    """It comes here when it was accepted."""
    target_database.execute(TARGET)
    everything = Policies.parse("stop", {})
    for event in (ADDED, DROPPED, RENAMED, WIDENED, MOVED, RELAXED, REKEYED, REWRITTEN, GONE):
        apply(target_database, everything, event, SOURCE)
        assert target_database.execute(COLUMNS, ["t"]) == [(AS_IT_WAS,)]
    assert labels(target_database) == ["sad"]


def test_rows_of_a_renamed_column_that_the_target_keeps_go_where_they_went(target_database: Database) -> None:
    target_database.execute(TARGET)
    known_tables = apply(target_database, Policies.parse("ignore", {}), RENAMED, SOURCE)
    with target_database.connect() as connection:
        [known] = known_tables.of_table(connection, TABLE.oid)
    assert known.columns["remark"] == 2


@pytest.mark.parametrize("made", ["TYPE mood AS ENUM ('sad')", "DOMAIN mood AS text", "TYPE mood AS (a text)"])
@pytest.mark.parametrize(("schema", "name"), [("public", "feeling"), ("kinds", "mood"), ("kinds", "feeling")])
def test_a_type_that_was_renamed_is_renamed_and_its_columns_keep_it(
    target_database: Database, made: str, schema: str, name: str
) -> None:
    target_database.execute(TARGET.replace("TYPE mood AS ENUM ('sad')", made).replace("n integer", "n mood"))
    for _ in range(2):  # the second worker of a target finds it done
        apply(target_database, Policies(), replace(MOOD, schema=schema, name=name), MOOD)
    [(found,)] = target_database.execute("SELECT pg_typeof(n)::text FROM t RIGHT JOIN (SELECT) ON true")
    assert found == f"{schema}.{name}".removeprefix("public.")


@pytest.mark.parametrize(("reason", "action"), [(8, None), (2, DefinitionAction.RECOPY)])
def test_rows_that_are_only_stored_otherwise_are_no_persons_concern(reason: int, action: DefinitionAction | None) -> None:
    met = arrival(replace(REWRITTEN, reason=reason), SOURCE)
    judgement = judge(met, Policies(), DefinitionUse.ALTERS)
    assert (judgement.stop is None) == (action is None)


def test_a_column_that_is_added_with_a_default_for_each_row_is_null_in_those_that_are_there(target_database: Database) -> None:
    target_database.execute(TARGET)
    target_database.execute(ROWS)
    policies = Policies.parse("apply", {"volatile-default": "null"})
    volatile = altered(ID, NEEDED, N, column(4, "more", not_null=True))
    for event in (FOR_EACH_ROW, volatile):
        was: TableDefinition = SOURCE
        assert judge(arrival(event, was), policies, DefinitionUse.ALTERS).stop is None
        apply(target_database, policies, event, was)
    assert target_database.execute("SELECT id, more FROM t ORDER BY id") == [(1, None), (2, None)]
