"""The options of sinks that write lines: they are one key in a file that serves several of them."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError

FORMAT = Option(
    "format",
    Kind.TEXT,
    "Output format: JSON in the shape of pgsluice, pg_flo or Debezium, Parquet in one directory per table "
    "(file sink only), or pgsluice for workers with worker-source: kafka (Kafka sink only)",
    "parquet",
    "json",
    choices=("json", "pg-flo", "debezium", "parquet", "pgsluice"),
)
FORMATS_OF_ONE_SINK = {"parquet": ("file", "files"), "pgsluice": ("kafka", "Kafka")}
"""The sink of each format: the command's word, and the sentence's."""
COLUMN_CASES = ("as-is", "lower", "upper", "snake", "camel")


def _shape_of(form: str) -> str:
    """Returns the shape for a sink without the format: a file may ask for the format of another sink."""
    return "json" if form in FORMATS_OF_ONE_SINK else form


@settings
class LineSettings:
    """``shape`` of a line is "json", "pg-flo" or "debezium", ``layout`` "envelope" or "flat". ``transactions``: lines
    for BEGIN and COMMIT too. ``column_ids``: lines have the numbers of their columns. ``debezium_name`` and
    ``debezium_database`` are "" for the group's name."""

    transactions: bool = read(Option("transactions", Kind.SWITCH, "Also write a line for each BEGIN and COMMIT", "true", "false"))
    shape: str = read(FORMAT, then=_shape_of)
    layout: str = read(
        Option(
            "row-layout",
            Kind.TEXT,
            "Layout of a row in format json: an envelope that includes the old row, or flat with the columns at the top level",
            "flat",
            "envelope",
            choices=("envelope", "flat"),
        )
    )
    column_case: str = read(
        Option("column-case", Kind.TEXT, "Spelling of column names in lines", "camel", "as-is", choices=COLUMN_CASES)
    )
    include_before: bool = read(
        Option(
            "include-before",
            Kind.SWITCH,
            "Include the old row in the line of an update, as far as the source sent it",
            "false",
            "true",
        )
    )
    column_ids: bool = read(
        Option(
            "column-ids",
            Kind.SWITCH,
            "Identify each column in lines by a number that stays the same after a rename (format json)",
            "true",
            "false",
        )
    )
    debezium_name: str = read(
        Option("debezium-name", Kind.TEXT, "Server name in format debezium, its topic.prefix (default: the group)", "shop")
    )
    debezium_database: str = read(
        Option("debezium-database", Kind.TEXT, "Database name in format debezium (default: the group)", "shop")
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        form = values.text("format")
        yield from _transaction_problems(values, form)
        yield from _column_id_problems(values, form)
        if values.text("row-layout") == "flat" and form != "json":
            yield UsageError(
                f"row-layout: flat has no meaning with format: {form} ({values.place('format')})",
                "remove it, or write format: json",
            )
        if values.text("column-case") != "as-is" and form in FORMATS_OF_ONE_SINK:
            yield UsageError(f"column-case has no meaning with format: {form}", "remove it, or rename columns by routes")


def foreign_format_problems(values: Values, own: str = "") -> Iterator[UsageError]:
    """Yields problems of formats of a single other sink, in a sink that makes only ``own`` of these. A file may ask for
    another sink's, which it serves too; a flag or a variable is meant for this one."""
    form = values.text("format")
    if form in FORMATS_OF_ONE_SINK and form != own and values.place("format") in (FORMAT.flag, FORMAT.variable):
        command, owner = FORMATS_OF_ONE_SINK[form]
        yield UsageError(
            f"format '{form}' ({values.place('format')}) is of {owner} alone",
            f"write json, pg-flo or debezium, or start 'pgsluice worker {command}'",
        )


_WORDS = {"parquet": "row", "pgsluice": "record"}
_TRANSACTION_FIELDS = {
    "pg-flo": "LSN and Position",
    "debezium": "txId and sequence",
    "parquet": "_xid and _position",
    "pgsluice": "its Begin",
}


def _transaction_problems(values: Values, form: str) -> Iterator[UsageError]:
    """Yields a problem for ``transactions`` with a format whose every line or row names its transaction."""
    if not values.switch("transactions"):
        return
    flat = form == "json" and values.text("row-layout") == "flat"
    where = "_xid and _position" if flat else _TRANSACTION_FIELDS.get(form)
    if where is not None:
        beside = "row-layout: flat" if flat else f"format: {form} ({values.place('format')})"
        yield UsageError(
            f"{values.named('transactions')} has no meaning with {beside}",
            f"remove it: every {_WORDS.get(form, 'line')} names its transaction in {where}",
        )


def _column_id_problems(values: Values, form: str) -> Iterator[UsageError]:
    """Yields a problem for ``column-ids`` with a format that has no place for them."""
    if not values.switch("column-ids"):
        return
    if form != "json":
        yield UsageError(
            f"{values.named('column-ids')} has no meaning with format: {form} ({values.place('format')})",
            "remove it, or write format: json",
        )
    elif values.text("row-layout") == "flat":
        yield UsageError(
            f"{values.named('column-ids')} has no meaning with row-layout: flat", "remove it, or write row-layout: envelope"
        )
