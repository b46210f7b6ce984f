"""Steps over COPY text: blocks of the query's rows become blocks of the target's.

A column that comes out with the name and the Arrow type that it went in with keeps its type of Postgres: a uuid, which
Arrow has as a string, is one at the target too. Any other gets the type of ``shared.rows.arrow_text``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pgsluice.replicator.pipelines.steps.step import Step
from pgsluice.replicator.pipelines.steps.step_chain import BoundStep, StepChain, StepFailedError
from pgsluice.replicator.snapshot.copy_task_messages import SteppedRows
from pgsluice.shared.rows.arrow_text import arrow_type, arrow_values, postgres_texts, postgres_type
from pgsluice.shared.rows.copy_text import decode_rows, encode_columns
from pgsluice.shared.wire.table import Column, Table, Value

if TYPE_CHECKING:
    from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine

Columns = list[list[Value]]


@dataclass(frozen=True, slots=True)
class BlockSteps:
    """Goes to tasks where all steps are functions, so nothing of it is imported code; a task imports the steps' modules when it
    has the first block. ``table`` has the query's columns."""

    chain: StepChain
    table: Table
    bound: tuple[BoundStep, ...]

    def apply(self, rows: int, data: bytes) -> SteppedRows:
        """Applies the steps to whole lines of COPY text. A row on which a step fails is left out, and reported by its
        place and the reason."""
        columns = decode_rows(data, len(self.table.columns))
        given: list[tuple[int, bytes]] = []
        failed: list[tuple[int, str]] = []
        for place, outcome in self._parts(columns, 0, rows):
            if isinstance(outcome, str):
                failed.append((place, outcome))
            else:
                given.append(outcome)
        return SteppedRows(sum(count for count, _ in given), b"".join(text for _, text in given), tuple(failed))

    def _parts(self, columns: Columns, first: int, rows: int) -> Iterator[tuple[int, tuple[int, bytes] | str]]:
        """Yields the results for the rows from the place ``first`` on: number and text of the resulting rows, or why a
        single row fails. A batch that fails is halved."""
        try:
            yield first, self._stepped([column[first : first + rows] for column in columns])
        except StepFailedError as failure:
            if rows == 1:
                yield first, failure.reason
                return
            half = rows // 2
            yield from self._parts(columns, first, half)
            yield from self._parts(columns, first + half, rows - half)

    def _stepped(self, columns: Columns) -> tuple[int, bytes]:
        batch = self.chain.apply(self._batch(columns), self.bound)
        texts = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                texts.append(postgres_texts(column))
            except ValueError as error:
                raise StepFailedError(f"the steps give column '{name}' a value that Postgres does not have") from error
        return batch.num_rows, encode_columns(texts, batch.num_rows)

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        arrays = []
        for column, values in zip(self.table.columns, columns, strict=True):
            try:
                arrays.append(arrow_values(values, arrow_type(column)))  # type: ignore[arg-type]  # COPY sends every value
            except ValueError:
                reason = f"column '{column.name}' holds a value of {column.type_name} that Arrow does not have"
                raise StepFailedError(f"{reason}: cast it to text in the query") from None
        return pa.RecordBatch.from_arrays(arrays, schema=query_schema(self.table))


def query_schema(table: Table) -> pa.Schema:
    """Returns the columns of the batches that the first step gets."""
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in table.columns])


def bind_steps(steps: tuple[Step, ...], key: tuple[str, ...], table: Table, engine: SqlEngine | None) -> tuple[BlockSteps, Table]:
    """Returns the steps for rows of ``table``, and the table that they fill. Blocks while ``engine`` starts, which is
    for steps in SQL. Raises UsageError for steps that do not fit; TransientError."""
    chain = StepChain(steps, key)
    bound = chain.bind(query_schema(table), engine)
    by_name = {column.name: column for column in table.columns}
    columns = tuple(_column(number, each, by_name.get(each.name)) for number, each in enumerate(bound[-1].schema, 1))
    return BlockSteps(chain, table, bound), replace(table, columns=columns)


def _column(number: int, given: pa.Field, before: Column | None) -> Column:
    if before is not None and arrow_type(before) == given.type:
        return replace(before, number=number)
    kind = postgres_type(given.type)
    assert kind is not None
    if before is not None:
        return replace(before, number=number, type_oid=kind.oid, type_name=kind.name, typmod=kind.typmod)
    return Column(given.name, kind.oid, kind.name, kind.typmod, False, None, False, "", "", number)
