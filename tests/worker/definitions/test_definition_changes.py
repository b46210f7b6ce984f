"""A definition on its way through a task: a change among others, that no copy, rule or dead letter touches without reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from pgsluice.rules.transformation import UNTRANSFORMED, Transformation
from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.definitions.difference import differences_of
from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.pgoutput.messages import Begin, Commit, Insert, LogicalMessage, PgoutputMessage, Relation, RelationColumn
from pgsluice.shared.rows.changes import DefinitionChange, MessageChanges, TableChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.definition import (
    DefinitionEvent,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableGone,
    TableRewritten,
    TypeDefined,
)
from pgsluice.shared.wire.message import DDL_PREFIX
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import copied, insert, update
from pgsluice.testing.changes_builder import message as builder_message
from pgsluice.testing.changes_builder import table as builder_table
from pgsluice.worker.batches.ownership import EVERYTHING, NEVER_COPIED, Copy, Ownership
from pgsluice.worker.batches.unreadable_rows import unreadable_changes
from pgsluice.worker.dead_letters.exclusions import touched_rows
from pgsluice.worker.definitions.arrivals import arrivals_of
from pgsluice.worker.sinks.lines import json_lines, pg_flo_lines
from pgsluice.worker.sinks.postgres.fold.fold import PartitionFold
from pgsluice.worker.sinks.postgres.fold.piece import FoldedPartition
from pgsluice.worker.sinks.sink import Lane
from pgsluice.worker.sinks.webhook.placed_lines import BARRIER
from pgsluice.worker.sinks.webhook.writer import ChosenLanes
from tests.shared.pgoutput.bodies import body_of
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, with_columns

COMMIT_LSN = 5000
WIDER = with_columns(ID, NOTE, column(3, "more", missing="7"))
ALTERED = PublishedDefinition(TableDefined("ALTER TABLE", WIDER), TABLE)
RELATION = Relation(TABLE.oid, "public", "t", ReplicaIdentity.DEFAULT, (RelationColumn(True, "id", 20, -1),))


def decoded(*messages: PgoutputMessage) -> MessageChanges:
    transaction = (Begin(LSN(COMMIT_LSN), 0, 9), *messages, Commit(0, LSN(COMMIT_LSN), LSN(COMMIT_LSN + 8), 0))
    return decode_changes(body_of(transaction), first_sequence=3, sequence=3, first_ordinal=1)


def defining(definition: PublishedDefinition = ALTERED) -> LogicalMessage:
    return LogicalMessage(True, LSN(1), DDL_PREFIX, definition.encode())


def test_a_definition_is_a_change_between_the_rows_around_it() -> None:
    insert = Insert(TABLE.oid, (b"1",))
    message = decoded(RELATION, insert, defining(), insert)
    assert message.change_count == 3
    assert [type(part) for part in message.parts] == [TableChanges, DefinitionChange, TableChanges]
    assert message.parts[1] == DefinitionChange(ALTERED, 1)
    assert [part.change_indexes for part in message.parts if isinstance(part, TableChanges)] == [[0], [2]]
    assert str(message.transactions[0].position(1)) == "0/1388:2"


def test_what_was_forged_is_a_change_and_says_nothing() -> None:
    message = decoded(RELATION, LogicalMessage(True, LSN(1), DDL_PREFIX, b""), Insert(TABLE.oid, (b"1",)))
    assert message.change_count == 2
    assert [part.change_indexes for part in message.parts if isinstance(part, TableChanges)] == [[1]]
    assert not [part for part in message.parts if isinstance(part, DefinitionChange)]


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"v":2}', b'{"v":1,"kind":"table"}', b'{"v":1,"kind":"gone","tag":"DROP TABLE"}']
)
def test_a_definition_that_cannot_be_read_is_an_error_of_the_wire(content: bytes) -> None:
    with pytest.raises(WireError, match="a definition in the stream is malformed"):
        decoded(LogicalMessage(True, LSN(1), DDL_PREFIX, content))


def test_a_message_of_another_prefix_is_no_change() -> None:
    assert decoded(LogicalMessage(True, LSN(1), "other", b"x")).change_count == 0


EVENTS: list[DefinitionEvent] = [
    TableDefined("ALTER TABLE", WIDER),
    TableGone("DROP TABLE", TABLE.oid, "public", "t"),
    TableRewritten("ALTER TABLE", TABLE.oid, "public", "t", 4),
    TypeDefined("ALTER TYPE", 7, "public", "mood", "e", "", (EnumLabel(8, "sad"),)),
    DefinitionUnknown("ALTER TABLE", "XX000"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_a_definition_goes_on_as_it_is(event: DefinitionEvent) -> None:
    message = decoded(defining(PublishedDefinition(event, None)))
    assert NEVER_COPIED.remainder(message) == message
    assert UNTRANSFORMED.apply(message) == (message, [])
    assert unreadable_changes(message) == []
    assert list(touched_rows(message)) == []
    assert ChosenLanes(message, 4).first == [BARRIER]
    fold = PartitionFold()
    fold.add(message)
    folded = fold.finish()
    assert folded.definitions == (PublishedDefinition(event, None),)
    assert FoldedPartition.decode(folded.encode()) == folded


@pytest.mark.parametrize(("oid", "is_copied"), [(TABLE.oid, True), (TABLE.oid + 1, False)])
def test_what_was_defined_before_a_copy_is_told_and_alters_nothing(oid: int, is_copied: bool) -> None:
    ownership = Ownership({oid: Copy("first", COMMIT_LSN + 1)})
    left = ownership.remainder(decoded(defining()))
    assert left.parts == [DefinitionChange(ALTERED, 0, is_copied=is_copied)]
    [arrival] = arrivals_of(decoded(defining()), ownership)
    assert arrival.is_copied is is_copied
    fold = PartitionFold()
    fold.add(left)
    assert fold.finish().definitions == (() if is_copied else (ALTERED,))
    assert len(json_lines.encode_lines(left)) == 1
    assert ownership.remainder(decoded(defining(PublishedDefinition(EVENTS[-1], None)))).parts


@pytest.mark.parametrize("lsn", [COMMIT_LSN + 1, EVERYTHING])
@pytest.mark.parametrize(("cohort", "lane"), [((), Lane.CHANGES), ((TABLE.oid,), Lane.CATCH_UP)])
def test_a_definition_of_a_copied_table_is_told_by_one_lane(lsn: int, cohort: tuple[int, ...], lane: Lane) -> None:
    """Also while its copy is not whole, or was given up."""
    ownership = Ownership({TABLE.oid: Copy("first", lsn)}, cohort=frozenset(cohort))
    told = [each for each in (Lane.CHANGES, Lane.CATCH_UP) if replace(ownership, lane=each).remainder(decoded(defining())).parts]
    assert told == [lane]


def test_a_definition_that_was_applied_before_is_not_told_again() -> None:
    message, later = decoded(defining()), {TABLE.oid: COMMIT_LSN + 1}
    assert Ownership({}, applied_before=COMMIT_LSN + 1).remainder(message).parts == []
    left = Ownership({}, lane=Lane.CATCH_UP, cohort=frozenset({TABLE.oid}), borders=later)
    assert left.remainder(message).parts == []


def test_a_rule_that_wants_every_column_listed_does_not_stop_at_a_definition_that_no_row_has(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("tables:\n  t: {unlisted: refuse, keep: [id, note], rules: []}\n")
    rules = load_transformation(str(file), "")
    message = decoded(defining())
    with pytest.raises(TerminalError, match="more"):
        rules.apply(message)
    past = Ownership({TABLE.oid: Copy("first", COMMIT_LSN + 1)}).remainder(message)
    assert len(rules.apply(past)[0].parts) == 1


@pytest.mark.parametrize("event", EVENTS)
def test_lines_tell_of_a_definition_in_its_place(event: DefinitionEvent) -> None:
    message = decoded(RELATION, Insert(TABLE.oid, (b"1",)), defining(PublishedDefinition(event, None)))
    for lines in (json_lines.encode_lines(message), pg_flo_lines.encode_lines(message)):
        assert len(lines) == 2
        assert json.loads(lines[1])


def test_a_line_says_what_a_table_is_like_and_was_before() -> None:
    line = orjson.loads(json_lines.encode_lines(decoded(defining()))[0])
    assert (line["operation"], line["schema"], line["table"]) == ("DDL", "public", "t")
    assert (line["kind"], line["tag"], line["position"]) == ("table", "ALTER TABLE", "0/1388:1")
    assert [each["name"] for each in line["columns"]] == ["id", "note", "more"]
    assert line["columns"][0] == {"number": 1, "name": "id", "type": "bigint", "not_null": True, "primary_key_position": 1}
    assert [each["name"] for each in line["previous"]["columns"]] == ["id", "note"]
    flo = orjson.loads(pg_flo_lines.encode_lines(decoded(defining()))[0])
    assert (flo["Type"], flo["Schema"], flo["Table"], flo["NewTuple"]["tag"]) == ("DDL", "public", "t", "ALTER TABLE")
    assert flo["LSN"] == "0/1388"


COLUMNS = ("id bigint", "note text", "more text")
RULES = """
tables:
  t:
    - {type: transform, column: note, parameters: {type: mask, mask_char: '*'}}
    - {type: transform, column: 'secret*', parameters: {type: mask, mask_char: '*'}}
  filtered:
    - {type: filter, column: id, parameters: {operator: gt, value: 1}}
"""


@pytest.mark.parametrize(
    ("table", "added", "is_unguarded"),
    [("t", "more", True), ("t", "secret_too", False), ("filtered", "more", False), ("other", "more", False)],
)
def test_a_new_column_of_a_table_that_hides_others_is_found(tmp_path: Path, table: str, added: str, is_unguarded: bool) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    rules = load_transformation(str(file), "")
    was = replace(TABLE, name=table)
    new = column(3, added)
    definition = PublishedDefinition(TableDefined("ALTER TABLE", replace(was, columns=(ID, NOTE, new))), was)
    assert rules.unguarded(definition) == ([new] if is_unguarded else [])
    assert rules.unguarded(PublishedDefinition(definition.event, None)) == []


def test_a_column_that_is_held_is_in_no_row_and_in_no_definition() -> None:
    numbered = [replace(each, number=number) for number, each in enumerate(builder_table("public.t", *COLUMNS).columns, 1)]
    table = replace(builder_table("public.t", *COLUMNS), oid=TABLE.oid, columns=tuple(numbered))
    holding = Transformation(held={TABLE.oid: frozenset({3})})
    full = replace(WIDER, replica_identity=ReplicaIdentity.FULL, identity_columns=(1, 2, 3))
    message, _ = holding.apply(
        builder_message(
            1,
            insert(table, b"1", b"a", b"secret"),
            update(replace(table, replica_identity=ReplicaIdentity.FULL), b"1", b"b", b"secret", old=(b"1", b"a", b"secret")),
            PublishedDefinition(TableDefined("ALTER TABLE", full), TABLE),
        )
    )
    rows = [part for part in message.parts if isinstance(part, TableChanges)]
    assert [[each.name for each in part.table.columns] for part in rows] == [["id", "note"]] * 2
    assert [part.new for part in rows] == [[[b"1"], [b"a"]], [[b"1"], [b"b"]]]
    [defined] = [part.definition for part in message.parts if isinstance(part, DefinitionChange)]
    assert differences_of(defined) == []
    assert PublishedDefinition.decode(defined.encode()) == defined
    [left], _ = holding.apply_copied(copied(1, table, (b"1", b"a", b"secret")))
    assert bytes(left.data) == b"1\ta\n"
    other = builder_message(1, insert(replace(table, oid=7), b"1", b"a", b"c"))
    assert holding.apply(other) == (other, [])


def test_a_column_that_is_held_stays_where_it_is_of_the_key() -> None:
    table = builder_table("public.t", *COLUMNS, key=("id", "more"))
    table = replace(table, columns=tuple(replace(each, number=number) for number, each in enumerate(table.columns, 1)))
    message, _ = Transformation(held={table.oid: frozenset({2, 3})}).apply(builder_message(1, insert(table, b"1", b"a", b"m")))
    [part] = message.parts
    assert isinstance(part, TableChanges)
    assert [each.name for each in part.table.columns] == ["id", "more"]


def test_while_a_column_is_held_no_column_passes_of_which_nobody_knows_whether_it_is_that() -> None:
    table = builder_table("public.t", *COLUMNS)
    numbered = [replace(each, number=number) for number, each in zip((1, 2, 0), table.columns, strict=True)]
    holding = Transformation(held={table.oid: frozenset({3})})
    with pytest.raises(TerminalError, match=r"table 'public\.t' is held, and it is not known whether it is more: "):
        holding.apply(builder_message(1, insert(replace(table, columns=tuple(numbered)), b"1", b"a", b"secret")))
