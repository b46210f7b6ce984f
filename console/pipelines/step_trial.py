"""``pgsluice steps test``: a pipeline's steps over rows of a file, without any server.

The rows go the way that they go in a run: the server's text, Arrow, the steps, text. So what comes out is what the target
would get.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import orjson

from pgsluice.console.pipelines.pipelines_file import read_pipelines
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.steps.block_steps import BlockSteps, bind_steps
from pgsluice.replicator.pipelines.steps.step import has_sql
from pgsluice.shared.config.yaml_nodes import read_text
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import StepsSettings
from pgsluice.shared.rows.arrow_text import PostgresType, named_type
from pgsluice.shared.rows.copy_text import decode_rows, encode_rows, split_lines
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

if TYPE_CHECKING:
    from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine

_DIGITS = re.compile(rb"-?\d+(\.\d+)?(e[+-]?\d+)?")
_NUMBERS = (20, 21, 23, 26, 700, 701, 1700)
_BOOLEAN = 16


def try_steps(settings: StepsSettings, name: str, path: str, types: Mapping[str, str]) -> None:
    """Writes the resulting rows as JSON lines, and reports each row on which a step fails with the step. ``types`` are
    the query's columns' types, if the rows' JSON is ambiguous. Raises UsageError when it cannot be tried, TerminalError
    when a row failed or the steps are invalid."""
    pipelines = read_pipelines(settings.catalog.file)
    if name not in pipelines:
        raise UsageError(f"there is no pipeline '{name}' in {settings.catalog.file}", f"there are {', '.join(pipelines)}")
    pipeline = pipelines[name]
    if not pipeline.steps:
        raise UsageError(f"pipeline '{name}' has no steps", "write some under 'steps:'")
    rows = list(_rows(path, read_text(path, "file of rows")))
    table = _table(pipeline, rows, types)
    with _engine(pipeline) as engine:
        steps, target = bind_steps(pipeline.steps, pipeline.key, table, engine)
        _show(steps, target, table, rows)


@contextmanager
def _engine(pipeline: Pipeline) -> Iterator[SqlEngine | None]:
    """Yields the evaluator of SQL, if needed."""
    if not has_sql(pipeline.steps):
        yield None
        return
    from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine

    engine = SqlEngine({})
    try:
        yield engine
    finally:
        engine.close()


def _show(steps: BlockSteps, target: Table, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    text = encode_rows([[_text(row.get(column.name)) for column in table.columns] for row in rows])
    _check(steps, len(rows), text)
    given = steps.apply(len(rows), text)
    for row in zip(*decode_rows(given.data, len(target.columns)), strict=True):
        sys.stdout.write(_line(target, row))
    for place, reason in given.failed:
        sys.stderr.write(f"row {place + 1}: {reason}\n")
    sys.stderr.write("columns: " + ", ".join(f"{column.name} {column.type_name}" for column in target.columns) + "\n")
    if given.failed:
        raise TerminalError(f"steps fail on {len(given.failed)} of {len(rows)} rows", "correct them, or leave the rows out")


def _rows(path: str, text: str) -> Iterator[Mapping[str, object]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: not a JSON object", 'write a row on each line, like {"id": 1, "title": "Alien"}')
        yield row


def _table(pipeline: Pipeline, rows: Sequence[Mapping[str, object]], types: Mapping[str, str]) -> Table:
    names = dict.fromkeys([*(name for row in rows for name in row), *types])
    columns = [_column(number, name, _type(name, rows, types), pipeline) for number, name in enumerate(names, 1)]
    missing = [name for name in pipeline.key if name not in names]
    if missing:
        raise UsageError(f"the rows have no column {', '.join(missing)}", "the pipeline's key is among its query's columns")
    return Table(pipeline.oid, pipeline.schema, pipeline.table, ReplicaIdentity.DEFAULT, tuple(columns))


def _column(number: int, name: str, kind: PostgresType, pipeline: Pipeline) -> Column:
    place = pipeline.key.index(name) + 1 if name in pipeline.key else None
    return Column(name, kind.oid, kind.name, kind.typmod, name in pipeline.key, place, name in pipeline.key, "", "", number)


def _type(name: str, rows: Sequence[Mapping[str, object]], types: Mapping[str, str]) -> PostgresType:
    if name in types:
        try:
            return named_type(types[name])
        except ValueError as error:
            raise UsageError(f"type '{types[name]}' of column '{name}' {error}", "see --help") from None
    kinds = {type(row[name]) for row in rows if row.get(name) is not None}
    guesses = {frozenset({bool}): "boolean", frozenset({int}): "bigint", frozenset({float}): "double precision"}
    return named_type(guesses.get(frozenset(kinds), "double precision" if kinds == {int, float} else "text"))


def _text(value: object) -> bytes | None:
    match value:
        case None:
            return None
        case bool():
            return b"t" if value else b"f"
        case str():
            return value.encode()
        case _:
            return orjson.dumps(value)


def _check(steps: BlockSteps, rows: int, text: bytes) -> None:
    """Raises TerminalError when steps give other rows a second time, or when rows come with others."""
    first = steps.apply(rows, text)
    if steps.apply(rows, text) != first:
        raise TerminalError("the steps give other rows the second time", "have them depend on the rows: no clock, no chance")
    single = b"".join(steps.apply(1, line + b"\n").data for line in split_lines(text))
    if sorted(split_lines(single)) != sorted(split_lines(first.data)):
        raise TerminalError(
            "the steps give other rows when each row comes alone",
            "let them process one row at a time: batches can end at any row",
        )


def _line(target: Table, row: Sequence[bytes | None]) -> str:
    shown = {column.name: _shown(column, value) for column, value in zip(target.columns, row, strict=True)}
    return orjson.dumps(shown).decode() + "\n"


def _shown(column: Column, value: bytes | None) -> object:
    if value is None:
        return None
    if column.type_oid == _BOOLEAN:
        return value == b"t"
    if column.type_oid in _NUMBERS and _DIGITS.fullmatch(value):
        return orjson.Fragment(value)
    return value.decode()
