"""Names of indexes, and the generations of an alias.

    shop_orders                   the name for searches: an alias of the newest generation that is whole
    shop_orders-000001            a generation: an index
    shop_orders-000001-write      the alias that its documents are written by

A table's documents are in one generation at a time. A new one takes over at once, by moving the alias. Writers name the
generation that they mean, by an alias that goes with its index: late requests of an abandoned task reach no reader
after the change, and a missing index is never made by writing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import NamePattern, Table
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.search.options import SearchSinkSettings

WRITE = "-write"
"""Suffix of the alias that documents are written by."""

_DIGITS = 6
_LONGEST_NAME_BYTES = 255 - len("-000001-write")
_FORBIDDEN = re.compile(r'[\\/*?"<>| ,#:\x00-\x1f]')
_BAD_BEGIN = ("-", "_", "+", ".")
PLACEHOLDER = re.compile(r"\{(schema|table)\}")


@dataclass(frozen=True, slots=True)
class Generation:
    """The ``number``-th index of what is searched as ``alias``."""

    alias: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.alias}-{self.number:0{_DIGITS}d}"

    @property
    def write_alias(self) -> str:
        return f"{self.name}{WRITE}"

    @property
    def following(self) -> Generation:
        return Generation(self.alias, self.number + 1)

    @classmethod
    def named(cls, name: str) -> Generation | None:
        """Returns the generation whose index has that name; None when none has."""
        return cls.parse(name.rpartition("-")[0], name)

    @classmethod
    def parse(cls, alias: str, name: str) -> Generation | None:
        """Returns None for an index that is not the alias's."""
        number = name.removeprefix(f"{alias}-")
        if name == number or not number.isascii() or not number.isdigit() or len(number) < _DIGITS:
            return None
        return cls(alias, int(number))


def index_alias(table: Table, settings: SearchSinkSettings) -> str:
    """Returns the alias for searches of the table's documents. Raises TerminalError when the name cannot be one, or is
    not allowed."""
    name = _filled(settings.index, table).lower()
    if flaw := flaw_of_name(name, settings.allow_indexes):
        raise TerminalError(
            f"table '{table.qualified_name}' would have the index '{name}', which {flaw}",
            "give the table another name on the way, by a route, or set search-index",
        )
    return name


def index_names(settings: SearchSinkSettings) -> PlaceNames:
    return PlaceNames(
        check="search-index",
        kind="index",
        kinds="indexes",
        named=_filled,
        pattern=settings.index,
        option="search-index",
        others=("{schema}-{table}", "{schema}--{table}"),
        alike=str.lower,
        why="names of indexes are in lower case",
        taken={"search-schema-index": settings.schema_index},
    )


def _filled(pattern: str, table: Table) -> str:
    return pattern.replace("{schema}", table.schema).replace("{table}", table.name)


def flaw_of_name(name: str, allowed: Sequence[str]) -> str:
    """Returns what keeps the name from being an alias; "" for nothing."""
    is_long = len(name.encode()) > _LONGEST_NAME_BYTES
    if _FORBIDDEN.search(name) or name.startswith(_BAD_BEGIN) or is_long or name != name.lower():
        return "is no name of an index"
    if allowed and not any(NamePattern(pattern).matches(name) for pattern in allowed):
        return "search-allow-indexes does not allow"
    return ""
