"""The JSON Schemas and types of lines: generated, shipped, and true of every line that the encoders make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any, assert_never

import jsonschema_rs
import pytest

from pgsluice import JsonLine
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.definition import (
    DefinitionEvent,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeAttribute,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import (
    copied,
    delete,
    insert,
    message,
    message_of,
    restart,
    table,
    transaction,
    truncate,
    update,
)
from pgsluice.worker.sinks.lines import debezium_lines, flat_lines, json_lines, pg_flo_lines
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.lines.schemas.declared_formats import FORMATS, DeclaredFormat
from pgsluice.worker.sinks.lines.schemas.generating import DIRECTORY, generated_files
from pgsluice.worker.sinks.lines.schemas.hints import fields_of
from tests.misses import no_misses
from tests.shared.pgoutput.bodies import cut_bodies
from tests.shared.pgoutput.corpus import Recording, recordings
from tests.source_code import REPOSITORY
from tests.worker.definitions.definitions_of import TABLE
from tests.worker.sinks.lines.test_line_encoding import CHANGES, COPIES, GOLDEN, ORDERS, SOURCE

BY_NAME = {declared.name: declared for declared in FORMATS}
ENCODINGS = {
    "json": (LineEncoding(), LineEncoding(transactions=True, column_ids=True)),
    "flat": (LineEncoding(LineShape.FLAT),),
    "pg-flo": (LineEncoding(LineShape.PG_FLO),),
    "debezium": (LineEncoding(LineShape.DEBEZIUM, source=SOURCE),),
}
MARKS = {"operation": "json", "_operation": "flat", "Type": "pg-flo", "op": "debezium"}
"""A field that every line of a format has, and no line of another."""

LABELS = TypeDefined("ALTER TYPE", 7, "shop", "mood", "e", "", (EnumLabel(1, "glad"),))
PARTS = replace(LABELS, kind="c", labels=(), attributes=(TypeAttribute(1, "street", 25, "text"),))
DEFINITIONS: tuple[tuple[DefinitionEvent, Defined | None], ...] = (
    (TableDefined("ALTER TABLE", TABLE), TABLE),
    (TablePublished("CREATE TABLE", TABLE), None),
    (TableUnpublished("ALTER PUBLICATION", 1, "shop", "t"), TABLE),
    (TableGone("DROP TABLE", 1, "shop", "t"), TABLE),
    (TableRewritten("ALTER TABLE", 1, "shop", "t", 4), None),
    (LABELS, replace(LABELS, labels=())),
    (PARTS, PARTS),
    (DefinitionUnknown("ALTER TABLE", "42501"), None),
)
KEYLESS = table("shop.notes", "note text", key=(), identity=ReplicaIdentity.FULL)
BY_HAND = (
    *CHANGES,
    *(message(20 + n, PublishedDefinition(*definition)) for n, definition in enumerate(DEFINITIONS)),
    message(40, truncate(ORDERS, cascade=True, restart_identity=True), insert(KEYLESS, b"a"), update(KEYLESS, b"b", old=(b"a",))),
    message_of(41, transaction(5000, delete(KEYLESS, b"b"), first_ordinal=3, commits=False)),
)
COPIES_BY_HAND = (*COPIES, copied(1, KEYLESS, (None,)), restart(2, ORDERS, snapshot="pipeline"))


@cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    """Of the file as it is installed."""
    text = (files("pgsluice") / "schemas" / f"{BY_NAME[name].stem}.schema.json").read_text()
    return jsonschema_rs.Draft202012Validator(json.loads(text))


def lines_of(name: str, changes: tuple[MessageChanges, ...], copies: tuple[CopiedRows, ...] = ()) -> Iterator[dict[str, Any]]:
    for form in ENCODINGS[name]:
        encoded = [form.encode(each) for each in changes] + [form.encode_copied(each) for each in copies]
        yield from (json.loads(line) for pieces in encoded for piece in pieces for line in piece.splitlines())


def misfits(name: str, line: dict[str, Any]) -> list[str]:
    return [f"{error.message} in {json.dumps(line)[:200]}" for error in validator(name).iter_errors(line)]


def test_the_files_are_what_the_declarations_make() -> None:
    found = {path.name: path.read_text() for path in DIRECTORY.glob("lines-*")}
    assert found.keys() == generated_files().keys()
    stale = (name for name, text in generated_files().items() if found[name] != text)
    no_misses(stale, "stale: run python -m pgsluice.worker.sinks.lines.schemas.generating")


def test_every_shape_of_lines_has_a_schema_and_is_tried_here() -> None:
    assert BY_NAME.keys() == ENCODINGS.keys() == {shape.value for shape in LineShape}
    assert all({form.shape.value for form in forms} == {name} for name, forms in ENCODINGS.items())


@pytest.mark.parametrize("name", BY_NAME)
def test_a_schema_is_one(name: str) -> None:
    jsonschema_rs.meta.validate(json.loads((DIRECTORY / f"{BY_NAME[name].stem}.schema.json").read_text()))


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("recording", recordings(), ids=str)
def test_lines_of_recorded_changes_fit(name: str, recording: Recording) -> None:
    bodies = cut_bodies([decode_message(each) for each in recording.messages], 3)
    changes = tuple(decode_changes(each.data, first_sequence=1, sequence=1, first_ordinal=each.first_ordinal) for each in bodies)
    assert [misfit for line in lines_of(name, changes) for misfit in misfits(name, line)] == []


@pytest.mark.parametrize("name", BY_NAME)
def test_lines_of_every_kind_of_change_fit(name: str) -> None:
    assert [misfit for line in lines_of(name, BY_HAND, COPIES_BY_HAND) for misfit in misfits(name, line)] == []


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
def test_golden_lines_fit(path: Any) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [misfit for line in lines for misfit in misfits(format_of(line), line)] == []


@pytest.mark.parametrize("name", BY_NAME)
def test_every_declared_kind_of_line_and_every_field_of_it_is_one_that_the_encoder_writes(name: str) -> None:
    """And those of objects within lines."""
    written = [each for line in lines_of(name, BY_HAND, COPIES_BY_HAND) for each in objects_within(line)]
    schema = json.loads((DIRECTORY / f"{BY_NAME[name].stem}.schema.json").read_text())
    never = []
    for kind, definition in schema["$defs"].items():
        alone = jsonschema_rs.Draft202012Validator(schema | {"oneOf": [{"$ref": f"#/$defs/{kind}"}]})
        seen = {field for each in written if alone.is_valid(each) for field in each}
        declared = {field for field, form in definition["properties"].items() if form is not False}
        never += [f"{kind}.{field}" for field in declared - seen]
    no_misses(never, "declared, and on no line")


def objects_within(value: Any) -> Iterator[dict[str, Any]]:
    """``value`` itself, when it is one, and all that are in it."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects_within(inner)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_line_with_a_field_more_or_less_is_refused(name: str) -> None:
    declared = BY_NAME[name]
    for line in lines_of(name, BY_HAND, COPIES_BY_HAND):
        if not has_columns(declared, line):
            assert misfits(name, line | {"more": 1})
        for field in required_fields(declared, line):
            assert misfits(name, {key: value for key, value in line.items() if key != field}), field


def has_columns(declared: DeclaredFormat, line: dict[str, Any]) -> bool:
    """Beside its own fields, where any name may be a column's."""
    return declared.name == "flat" and line["_operation"] in ("READ", "INSERT", "UPDATE", "DELETE")


def required_fields(declared: DeclaredFormat, line: dict[str, Any]) -> set[str]:
    """Those that no kind of line may lack that has all the fields of this one."""
    kinds = [{field.name: field.is_required for field in fields_of(kind)} for kind in declared.kinds]
    fitting = [kind for kind in kinds if has_columns(declared, line) or line.keys() <= kind.keys()]
    names = {name for kind in fitting for name in kind}
    return {name for name in names & line.keys() if all(kind.get(name, True) for kind in fitting)}


def test_a_flat_row_has_no_column_of_a_name_that_says_something_of_a_change() -> None:
    (line,) = lines_of("flat", (message(1, insert(ORDERS, b"7", b"1", b"n", None, None)),))
    assert misfits("flat", line) == []
    assert misfits("flat", line | {"_snapshot": "s"})


def format_of(line: dict[str, Any]) -> str:
    (found,) = (name for mark, name in MARKS.items() if mark in line)
    return found


def objects_in(text: str) -> list[dict[str, Any]]:
    """The JSON objects that begin a line, over as many lines as they take."""
    decoder = json.JSONDecoder()
    found = [decoder.raw_decode(text, match.end(1))[0] for match in re.finditer(r'^( *)(?=\{"\w+": ?)', text, re.MULTILINE)]
    return [each for each in found if not MARKS.keys().isdisjoint(each)]


def test_examples_of_lines_in_the_documents_fit() -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((REPOSITORY / "docs").rglob("*.md")):
        blocks = re.findall(r"^```json\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        examples = [each for block in blocks for each in objects_in(block)]
        if examples:
            found[path.name] = examples
    assert found.keys() >= {"lines.md", "sink-stdout.md", "migrating-from-pg_flo.md"}
    assert {format_of(each) for each in found["lines.md"]} == set(MARKS.values())
    assert [misfit for examples in found.values() for each in examples for misfit in misfits(format_of(each), each)] == []


@pytest.mark.parametrize(("module", "examples"), [(json_lines, 2), (flat_lines, 1), (pg_flo_lines, 1), (debezium_lines, 1)])
def test_examples_of_lines_in_docstrings_fit(module: ModuleType, examples: int) -> None:
    found = objects_in(module.__doc__ or "")
    assert len(found) == examples
    assert [misfit for each in found for misfit in misfits(format_of(each), each)] == []


def followed(lines: list[JsonLine]) -> dict[int, str]:
    """A reader in Python: a type checker knows which fields a line has once its operation is known."""
    notes: dict[int, str] = {}
    for line in lines:
        match line["operation"]:
            case "READ" | "INSERT":
                notes[line["after"]["id"]] = line["after"]["note"]
            case "UPDATE":
                notes[line["after"]["id"]] = line["after"]["note"]
            case "DELETE":
                del notes[line["before"]["id"]]
            case "TRUNCATE" | "RESTART":
                notes.clear()
            case "DDL" | "BEGIN" | "COMMIT":
                pass
            case unreachable:
                assert_never(unreachable)
    return notes


def test_a_reader_follows_lines_by_their_types() -> None:
    notes = table("shop.notes", "id bigint", "note text")
    changes = message(
        1, insert(notes, b"1", b"a"), insert(notes, b"2", b"b"), update(notes, b"1", b"c"), delete(notes, b"2", None)
    )
    lines: list[JsonLine] = [json.loads(line) for line in LineEncoding(transactions=True).encode(changes)]
    assert followed(lines) == {1: "c"}
