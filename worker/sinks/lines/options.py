"""The options of sinks that write lines: they are one key in a file that serves several of them."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError

TRANSACTIONS = Option("transactions", Kind.SWITCH, "Write a line for each BEGIN and COMMIT too", "true", "false")
FORMAT = Option(
    "format",
    Kind.TEXT,
    "What is written: JSON objects, the same in the shape of pg_flo, or (files only) Parquet in one directory per table",
    "parquet",
    "json",
    choices=("json", "pg-flo", "parquet"),
)

COLUMN_IDS = Option(
    "column-ids",
    Kind.SWITCH,
    "Have each line say which column is which by a number that stays when a column is renamed (format json)",
    "true",
    "false",
)


def shape_of(form: str) -> str:
    """How a line looks, "json" or "pg-flo", for a sink that makes no Parquet: a file may ask for that of another sink."""
    return "pg-flo" if form == "pg-flo" else "json"


def parquet_problems(values: Values) -> Iterator[UsageError]:
    """For a sink that makes no Parquet. A file may say ``format: parquet`` for the file worker that it serves too; a flag or a
    variable is meant for this one."""
    if values.text("format") == "parquet" and values.place("format") in (FORMAT.flag, FORMAT.variable):
        yield UsageError(
            f"format 'parquet' ({values.place('format')}) is of files alone",
            "write json or pg-flo, or start 'pgsluice worker file'",
        )


def transaction_problems(values: Values, form: str, where: str) -> Iterator[UsageError]:
    """``transactions`` beside a format whose every line or row names its transaction in ``where``."""
    if values.switch("transactions") and values.text("format") == form:
        yield UsageError(
            f"{values.named('transactions')} has no meaning with format: {form} ({values.place('format')})",
            f"remove it: every {'row' if form == 'parquet' else 'line'} names its transaction in {where}",
        )


def column_id_problems(values: Values, form: str) -> Iterator[UsageError]:
    """``column-ids`` beside a format that has no place for them."""
    if values.switch("column-ids") and values.text("format") == form:
        yield UsageError(
            f"{values.named('column-ids')} has no meaning with format: {form} ({values.place('format')})",
            "remove it, or write format: json",
        )


def pg_flo_problems(values: Values) -> Iterator[UsageError]:
    yield from transaction_problems(values, "pg-flo", "LSN and Position")
    yield from column_id_problems(values, "pg-flo")
