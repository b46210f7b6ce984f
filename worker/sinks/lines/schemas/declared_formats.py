"""The formats whose lines are declared, with the version of each one's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from pgsluice.worker.sinks.lines.schemas.debezium_forms import DebeziumLine
from pgsluice.worker.sinks.lines.schemas.flat_forms import FlatLine, FlatRow
from pgsluice.worker.sinks.lines.schemas.json_forms import JsonLine
from pgsluice.worker.sinks.lines.schemas.pg_flo_forms import PgFloLine


@dataclass(frozen=True, slots=True)
class DeclaredFormat:
    """``name`` is the option's value for it. ``lines`` is a union of TypedDicts; the ones in ``open_lines`` have the
    row's columns in addition to their own fields. ``version`` stays while kinds of lines and fields are added, and
    grows when a field goes or holds something else than before."""

    name: str
    version: int
    line_type: str
    description: str
    lines: Any
    open_lines: Any = None

    @property
    def stem(self) -> str:
        """The stem of its files' names."""
        return f"lines-{self.name}.v{self.version}"

    @property
    def kinds(self) -> tuple[type, ...]:
        return get_args(self.lines)

    @property
    def open_kinds(self) -> tuple[type, ...]:
        return get_args(self.open_lines)


FORMATS = (
    DeclaredFormat(
        "json", 1, "JsonLine", "One line of pgsluice's format json, and one event of a webhook subscription", JsonLine
    ),
    DeclaredFormat("flat", 1, "FlatLine", "One line of pgsluice's format json with row-layout flat", FlatLine, FlatRow),
    DeclaredFormat("pg-flo", 1, "PgFloLine", "One line of pgsluice's format pg-flo", PgFloLine),
    DeclaredFormat("debezium", 1, "DebeziumLine", "One line of pgsluice's format debezium", DebeziumLine),
)
