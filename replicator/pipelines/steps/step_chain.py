"""A pipeline's steps: bound to columns, and applied to batches.

A step in SQL is ``sql_engine``'s. One in Python is a function ``(batch, settings) -> batch`` over ``pyarrow.RecordBatch``. It

- gives as many rows as it likes, always with the same columns, also for a batch without rows: so it is known before anything is
  read which columns the target has,
- keeps the columns of the pipeline's key, with a value in each row,
- gives the same for the same batch, and does nothing else: a batch may be tried again, and rows of a batch that fails come
  again in smaller ones until the row is found.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, assert_never, cast

import pyarrow as pa

from pgsluice.replicator.pipelines.steps.sql_rules import RELATION, SqlRefusedError
from pgsluice.replicator.pipelines.steps.step import PythonStep, SqlStep, Step
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.defect import place_of
from pgsluice.shared.rows.arrow_text import postgres_type

if TYPE_CHECKING:
    from pgsluice.replicator.pipelines.steps.sql_engine import CompiledSql, SqlEngine

StepFunction = Callable[[pa.RecordBatch, object], pa.RecordBatch]


class StepFailedError(Exception):
    """``reason`` is for users, and holds no value of a row."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BoundStep:
    """``number`` counts from 1. ``schema`` are its resulting columns. ``sql`` is None for a function, which is imported
    where it is called first: so a step can be sent to a task."""

    number: int
    step: Step
    schema: pa.Schema
    sql: CompiledSql | None = None

    @property
    def called(self) -> str:
        return f"step {self.number} ({self.step.name})"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raises StepFailedError, and TransientError for SQL if the JVM is gone."""
        match self.step:
            case PythonStep():
                given = _called(self.called, self.step, batch)
            case SqlStep():
                given = self._evaluated(batch)
            case unreachable:
                assert_never(unreachable)
        if not given.schema.equals(self.schema):
            raise StepFailedError(f"{self.called} gives other columns than for a batch without rows")
        return given

    def _evaluated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from pgsluice.replicator.pipelines.steps.sql_engine import SqlFailedError

        assert self.sql is not None
        try:
            return self.sql.apply(batch)
        except SqlFailedError as failure:
            raise StepFailedError(f"{self.called} failed: {failure.condition}") from None


@dataclass(frozen=True, slots=True)
class StepChain:
    """``key`` are the columns that each step has to keep."""

    steps: tuple[Step, ...]
    key: tuple[str, ...]

    def bind(self, schema: pa.Schema, engine: SqlEngine | None) -> tuple[BoundStep, ...]:
        """Returns the steps for rows of ``schema``; ``engine`` is for those in SQL. Raises UsageError for a step that
        cannot be imported, fails on a batch without rows, is no statement that may be, or gives what no table can have;
        TransientError."""
        bound: list[BoundStep] = []
        for number, step in enumerate(self.steps, 1):
            match step:
                case PythonStep():
                    bound.append(_bound_function(number, step, schema))
                case SqlStep():
                    assert engine is not None
                    bound.append(_bound_sql(number, step, schema, engine))
                case unreachable:
                    assert_never(unreachable)
            schema = bound[-1].schema
            self._check_columns(bound[-1].called, schema)
        return tuple(bound)

    def apply(self, batch: pa.RecordBatch, bound: Sequence[BoundStep]) -> pa.RecordBatch:
        """Returns the result of the last step. ``bound`` is from ``bind``. Raises StepFailedError, TransientError."""
        for each in bound:
            batch = each.apply(batch)
            for name in self.key:
                if batch.column(name).null_count:
                    raise StepFailedError(f"{each.called} gives a row without a value in '{name}', of the key")
        return batch

    def _check_columns(self, called: str, schema: pa.Schema) -> None:
        doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if doubled:
            raise UsageError(f"{called} gives several columns {', '.join(doubled)}", "give each column a distinct name")
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise UsageError(f"{called} gives no column {', '.join(missing)}", "keep the columns of the pipeline's key")
        for column in schema:
            if postgres_type(column.type) is None:
                raise UsageError(
                    f"{called} gives column '{column.name}' the type {column.type}, which no column of a table has",
                    "cast it, for example to a string",
                )


def _bound_function(number: int, step: PythonStep, schema: pa.Schema) -> BoundStep:
    try:
        return BoundStep(number, step, _called(f"step {number} ({step.name})", step, _empty(schema)).schema)
    except StepFailedError as failure:
        raise UsageError(
            f"{failure.reason}, for a batch without rows", "correct the step: it is asked so which columns it gives"
        ) from None


def _bound_sql(number: int, step: SqlStep, schema: pa.Schema, engine: SqlEngine) -> BoundStep:
    try:
        compiled = engine.compile(step.text, schema)
    except SqlRefusedError as refusal:
        raise _sql_refused(number, refusal, f"its rows have {', '.join(schema.names)}") from None
    return BoundStep(number, step, compiled.schema, compiled)


def check_statements(steps: Sequence[Step]) -> None:
    """Checks the statements without any columns. Blocks for the seconds that a JVM takes. Raises UsageError;
    TransientError."""
    from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine

    engine = SqlEngine({})
    try:
        for number, step in enumerate(steps, 1):
            if step.statement:
                _check_statement(number, step.statement, engine)
    finally:
        engine.close()


def _check_statement(number: int, text: str, engine: SqlEngine) -> None:
    try:
        engine.check(text)
    except SqlRefusedError as refusal:
        raise _sql_refused(number, refusal, f"it is one SELECT over {RELATION}") from None


def _sql_refused(number: int, refusal: SqlRefusedError, remedy: str) -> UsageError:
    return UsageError(f"step {number} (sql) {refusal.reason}", f"correct the statement; {remedy}")


def _called(called: str, step: PythonStep, batch: pa.RecordBatch) -> pa.RecordBatch:
    function = load_function(step)
    try:
        given = function(batch, dict(step.settings))
    except Exception as error:  # noqa: BLE001  whatever people's code raises; the text may quote a row
        raise StepFailedError(f"{called} failed: {place_of(error)}") from None
    if not isinstance(given, pa.RecordBatch):
        kind = type(given).__name__
        raise StepFailedError(f"{called} gives a {kind}, and has to give a pyarrow.RecordBatch")
    return given


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema], schema=schema)


def load_function(step: PythonStep) -> StepFunction:
    """Imports the step's module. Raises UsageError when that fails, or the function is not defined there."""
    return _loaded(step.module, step.function)


@cache
def _loaded(module: str, function: str) -> StepFunction:
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # noqa: BLE001  people's code
        raise UsageError(
            f"module '{module}' of step '{module}:{function}' cannot be imported ({place_of(error)})",
            "install it where the pipeline runs, or name its directory in PYTHONPATH",
        ) from None
    if not callable(found) or getattr(found, "__module__", None) != module:  # what it only imported is not allowed with it
        raise UsageError(f"module '{module}' defines no function '{function}'", "name one that the module itself defines")
    return cast("StepFunction", found)
