"""Names and patterns of names, as options, rules files and routing files spell tables and columns.

    orders        that name; a table's without a schema is in the default schema for options, in any schema for rules and routes
    shop.orders   the table of that schema
    shop.*        every table of that schema
    order_*       ``*`` stands for any characters, none included
    "odd.name"    a name with a dot, a ``*`` or a quote in it stands in double quotes, its quotes doubled

Names are the catalog's spelling, case included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from pgsluice.shared.wire.table import Table

_IDENTIFIER = r'"(?:[^"]|"")+"|[^".]+'
_LIKE_SPECIAL = re.compile(r"[\\%_]")
_QUALIFIED = re.compile(rf"(?:({_IDENTIFIER})\.)?({_IDENTIFIER})")


TableName = tuple[str, str]
"""Schema and name."""


def table_names(table: Table, also: TableName | None) -> tuple[TableName, ...]:
    """The table's own name, and the other one that it has, if any."""
    own = table.schema, table.name
    return (own,) if also is None or also == own else (own, also)


@dataclass(frozen=True, slots=True)
class NamePattern:
    """``text`` is as it was written."""

    text: str

    @classmethod
    def exact(cls, name: str) -> NamePattern:
        """That name alone, whatever characters it holds."""
        doubled = name.replace('"', '""')
        return cls(f'"{doubled}"')

    @property
    def is_name(self) -> bool:
        """Whether it stands for one name only."""
        return self.text.startswith('"') or "*" not in self.text

    @property
    def name(self) -> str:
        """The one name, as the catalog has it, when ``is_name``."""
        return self.text[1:-1].replace('""', '"') if self.text.startswith('"') else self.text

    def matches(self, name: str) -> bool:
        return name == self.name if self.is_name else _compiled(self.text).fullmatch(name) is not None

    @property
    def like(self) -> str:
        """The same as a pattern of SQL's LIKE."""
        parts = [self.name] if self.is_name else self.text.split("*")
        return "%".join(_LIKE_SPECIAL.sub(r"\\\g<0>", part) for part in parts)

    def __str__(self) -> str:
        return self.name if self.is_name else self.text


@dataclass(frozen=True, slots=True)
class TablePattern:
    """``schema`` is None when none was written: any schema then."""

    text: str
    schema: NamePattern | None
    name: NamePattern

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Raises ValueError, with the end of a sentence that begins with the text."""
        match = _QUALIFIED.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                "is not a table (write 'table', 'schema.table', 'schema.*' or '*', a name with a dot in double quotes)"
            )
        return cls(text, None if match[1] is None else NamePattern(match[1]), NamePattern(match[2]))

    @property
    def is_name(self) -> bool:
        """Whether it is meant for one table only."""
        return self.name.is_name and (self.schema is None or self.schema.is_name)

    def within(self, schema: str) -> TablePattern:
        """The same; where no schema was written, of ``schema`` alone."""
        return self if self.schema is not None else replace(self, schema=NamePattern.exact(schema))

    def matches(self, schema: str, name: str) -> bool:
        return self.name.matches(name) and (self.schema is None or self.schema.matches(schema))


@lru_cache(maxsize=1024)
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
