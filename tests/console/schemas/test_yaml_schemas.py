"""The JSON Schemas of YAML files: current, true of every example, and as strict as the readers about keys and words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import jsonschema_rs
import pytest

from pgsluice.console.documents.group_document import parse_document
from pgsluice.console.pipelines.pipelines_file import parse_pipeline, parse_pipelines
from pgsluice.console.pipelines.places import read_places
from pgsluice.console.schemas.generating import DIRECTORY, SCHEMAS, generated_files
from pgsluice.console.schemas.option_schemas import option_value
from pgsluice.console.schemas.values import mapping
from pgsluice.console.shell.shell_commands import first_file
from pgsluice.rules.document import open_document
from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.transformation_files import load_routing
from pgsluice.shared import config
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.search.mapping_file import load_mapping
from tests.configuration import BY_NAME, OPTIONS, READERS
from tests.fuzz.targets import configuration, pipelines, rules
from tests.misses import no_misses
from tests.source_code import REPOSITORY

EXAMPLE = REPOSITORY / "config.example.yaml"
MODELINE = re.compile(r"^# yaml-language-server: \$schema=(\S+)$", re.MULTILINE)
OF_OTHERS = {"rule_files", "scrape_configs", "image"}
"""First keys of other programs' files, and of the chart's values, which have a separate schema."""

PIPELINE = "query: SELECT 1 AS id\ntarget: a.b\nkey: [id]\n"
SETTINGS = tuple(settings for readers in READERS for settings in readers)


@cache
def validator(kind: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(SCHEMAS[kind]())


def content(text: str) -> dict[str, Any]:
    """Returns the file as an editor reads it: an unquoted scalar is a number or a boolean if JSON reads it as one."""
    root, _ = open_document("file.yaml", "rules file", text)
    return {key: root.typed(key) for key in root.keys()}  # noqa: SIM118  no dict


def errors(kind: str, text: str) -> list[str]:
    return [
        f"{'/'.join(map(str, each.instance_path))}: {each.message[:300]}" for each in validator(kind).iter_errors(content(text))
    ]


def test_the_files_are_current() -> None:
    found = {path.name: path.read_text() for path in DIRECTORY.iterdir() if not path.name.startswith("lines-")}
    assert found.keys() == generated_files().keys()
    stale = (name for name, text in generated_files().items() if found[name] != text)
    no_misses(stale, "stale: run python -m pgsluice.console.schemas.generating")


def test_a_key_that_is_read_and_not_described_ends_the_generation() -> None:
    with pytest.raises(ValueError, match="described or read, but not both: new"):
        mapping(["old", "new"], {"old": {}})


def test_the_example_and_the_first_file_name_their_schema() -> None:
    [named] = MODELINE.findall(EXAMPLE.read_text())
    assert (REPOSITORY / named).resolve() == (DIRECTORY / "config.schema.json").resolve()
    [named] = MODELINE.findall(first_file())
    assert Path(named) == DIRECTORY / "config.schema.json"


def test_the_example_fits_its_schema_also_with_each_key_that_it_has_in_a_comment() -> None:
    text = MODELINE.sub("", EXAMPLE.read_text())
    assert errors("config", text) == []
    assert errors("config", first_file()) == []
    commented = re.findall(r"^# ([a-z]+(?:-[a-z]+)*:.*)$", text, re.MULTILINE)
    assert len(commented) > 100
    no_misses((f"{line}: {found}" for line in commented for found in errors("config", f"{line}\n")), "its schema refuses it")


def _written(option: Option, text: str) -> str:
    """Returns a line of the file; texts are quoted, because some begin with a special character of YAML."""
    if option.kind is Kind.PAIRS:
        key, _, value = text.partition("=")
        return f"{option.name}: {{{json.dumps(key)}: {json.dumps(value)}}}\n"
    return f"{option.name}: {text if option.kind in (Kind.NUMBER, Kind.SWITCH, Kind.SIZE) else json.dumps(text)}\n"


def test_the_schema_takes_the_example_and_the_default_of_each_option() -> None:
    assert SCHEMAS["config"]()["properties"].keys() == BY_NAME.keys() - {"config"}
    refused = (
        f"{option.name}: {found}"
        for option in OPTIONS
        for text in (option.example, option.default)
        if text and option.name != "config"
        for found in errors("config", _written(option, text))
    )
    no_misses(refused, "its schema refuses it")


def test_the_schema_refuses_a_value_outside_an_options_bounds_and_choices() -> None:
    for option in OPTIONS:
        taken = jsonschema_rs.validator_for({"anyOf": option_value(option)})
        if option.choices:
            assert not taken.is_valid("no such choice" if option.kind is not Kind.LIST else ["no such choice"]), option.name
        if option.kind is Kind.NUMBER and option.minimum is not None:
            assert not taken.is_valid(int(option.minimum) - 1), option.name
        if option.kind in (Kind.NUMBER, Kind.SIZE, Kind.DURATION, Kind.SWITCH):
            assert not taken.is_valid("neither"), option.name
        if option.kind is Kind.DURATION:
            assert (taken.is_valid("7d1h"), taken.is_valid("1h7d"), taken.is_valid("")) == (True, False, False), option.name


def _documented() -> Iterator[tuple[str, str, str]]:
    """Yields the place, the kind and the text of each example."""
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))):
        for number, block in enumerate(re.findall(r"^ *```ya?ml\n(.*?)^ *```$", path.read_text(), re.MULTILINE | re.DOTALL), 1):
            text = dedent(block)
            yield f"{path.relative_to(REPOSITORY)}, example {number}", _kind(text), text


def _kind(block: str) -> str:
    keys = content(block)
    if keys.keys() & OF_OTHERS:
        return "of others"
    if "pipelines" in keys:
        return "pipelines"
    if keys.keys() <= {"sources", "sinks", "modules", "groups"}:
        return "places"
    if "destination_" in block:
        return "routing"
    if keys.keys() == {"tables"} and isinstance(keys["tables"], dict):
        return "search-mapping" if "columns:" in block else "rules"
    return "pipeline" if not keys.keys() - SCHEMAS["pipeline"]()["properties"].keys() else "config"


def test_every_yaml_example_of_the_documents_fits_its_schema() -> None:
    seen = set()
    found = []
    for place, kind, block in _documented():
        seen.add(kind)
        if kind not in ("of others", "pipeline"):
            found += [f"{place} ({kind}): {error}" for error in errors(kind, block)]
        if kind == "pipeline":  # a part of one, below the others' keys
            found += [f"{place} ({kind}): {error}" for error in errors(kind, f"{PIPELINE}{block}")]
    no_misses(found, "an example that its schema refuses")
    assert seen >= {"config", "rules", "routing", "pipelines", "places", "search-mapping"}


def _load_config(text: str) -> object:
    return config.load_text("pgsluice.yaml", text, {"PASSWORD": "secret", "EMPTY": ""}, *SETTINGS, known=OPTIONS)


READ: dict[str, tuple[ModuleType, Callable[[str], object]]] = {
    "rules": (rules, lambda text: load_rules("rules.yml", text)),
    "routing": (rules, lambda text: load_routing("routing.yml", text)),
    "pipelines": (pipelines, lambda text: parse_pipelines("pipelines.yaml", text)),
    "pipeline": (pipelines, lambda text: parse_pipeline("the request", text, "films")),
    "config": (configuration, _load_config),
}
"""The fuzz target with inputs for a reader, and the reader, by the kind of file."""


@pytest.mark.parametrize("kind", READ)
def test_what_the_reader_takes_of_made_up_files_fits_the_schema(kind: str) -> None:
    target, read = READ[kind]
    found, taken = [], 0
    for data in target.seeds():
        text = data.decode()
        try:
            read(text)
        except UsageError:
            continue
        if kind == "rules" and "tables" not in content(text):
            continue  # pg_flo's files without a root are read, and not recommended
        taken += 1
        found += [f"{text}: {error}" for error in errors(kind, text)]
    no_misses(found, "the reader takes it, and the schema refuses it")
    assert taken


FILTER = "tables: {users: [{type: filter, column: age, parameters: {operator: gte, value: 18}}]}"
MASK = "tables: {users: [{type: transform, column: email, parameters: {type: mask}}]}"
ROUTE = "users: {destination_schema: crm, operations: [INSERT]}"
PLACES = "sinks: {w: {kind: postgres, config: w.yaml, targets: [a.b]}}"
MAPPING = "tables: {users: {columns: {note: {type: text}}}}"


@pytest.mark.parametrize(
    ("kind", "whole", "part", "instead"),
    [
        ("rules", FILTER, "gte", "above"),
        ("rules", FILTER, "type: filter", "type: filtre"),
        ("rules", FILTER, "column: age, ", ""),
        ("rules", FILTER, "value: 18", "value: 18, values: 1"),
        ("rules", FILTER, "tables", "table"),
        ("rules", MASK, "type: mask", "type: mask, mask_char: ab"),
        ("rules", MASK, "type: mask", "type: hash"),
        ("rules", MASK, "type: mask", "type: regex, pattern: a"),
        ("rules", MASK, "column: email", "operations: [UPSERT], column: email"),
        ("routing", ROUTE, "INSERT", "UPSERT"),
        ("routing", ROUTE, "destination_schema", "destination_scheme"),
        ("pipeline", PIPELINE, "key: [id]", ""),
        ("pipeline", PIPELINE, "key: [id]", "key: [id]\nmode: partial"),
        ("pipeline", PIPELINE, "key: [id]", "key: [id]\ndeletes: {column: a, reconcile: 24h}"),
        ("pipeline", PIPELINE, "key: [id]", "key: [id]\nsteps: [{sql: SELECT, python: 'a:b'}]"),
        ("pipeline", PIPELINE, "key: [id]", "key: [id]\nretries: often"),
        ("pipeline", PIPELINE, "key: [id]", "key: [id]\nstatement-timeout: 30s1m"),
        ("places", PLACES, "kind: postgres", "kind: postgre"),
        ("places", PLACES, "[a.b]", "[]"),
        ("places", PLACES, "sinks", "sink"),
        ("search-mapping", MAPPING, "type: text", "kind: text"),
        ("search-mapping", MAPPING, "columns", "fields"),
        ("group", "group: orders\npassword: ${PASSWORD}", "${PASSWORD}", "secret"),
        ("group", "group: orders", "group: orders", "port: 5432"),
        ("group", "group: orders\nhost: db", "host", "hosts"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(kind: str, whole: str, part: str, instead: str, tmp_path: Path) -> None:
    read: dict[str, Callable[[str], object]] = {
        "places": lambda text: read_places(_file(tmp_path, text)),
        "search-mapping": lambda text: load_mapping(_file(tmp_path, text)),
        "group": lambda text: parse_document("the request", text, BY_NAME),
    } | {name: reader for name, (_, reader) in READ.items()}
    read[kind](whole)
    assert errors(kind, whole) == []
    wrong = whole.replace(part, instead)
    assert wrong != whole
    with pytest.raises(UsageError):
        read[kind](wrong)
    assert errors(kind, wrong) != []


def _file(directory: Path, text: str) -> str:
    path = directory / "file.yaml"
    path.write_text(text)
    return str(path)
