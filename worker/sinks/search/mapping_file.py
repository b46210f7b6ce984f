"""The file of ``search-mapping``: fields and index settings that differ from the defaults.

    tables:
      shop.orders:                        # or orders, shop.*, "*", order_*
        settings: {number_of_shards: 3, refresh_interval: 30s}
        columns:
          note: {type: text, analyzer: english}
          payload: {type: object, dynamic: "true"}

A column's entry replaces the whole field. Of several entries that match a table, later ones win.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pgsluice.rules.document import YamlMapping, open_document
from pgsluice.shared.config.kinds import parse_switch
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Table, TablePattern

ENTRY_KEYS = ("settings", "columns")


@dataclass(frozen=True, slots=True)
class MappingEntry:
    """``columns`` are by name, each with the field's definition as the server takes it."""

    pattern: TablePattern
    settings: dict[str, Any]
    columns: dict[str, dict[str, Any]]

    def matches(self, table: Table) -> bool:
        return self.pattern.matches(table.schema, table.name)


@dataclass(frozen=True, slots=True)
class MappingFile:
    """``path`` is "" without a file."""

    path: str
    entries: tuple[MappingEntry, ...]

    def settings_of(self, table: Table) -> dict[str, Any]:
        return {name: value for entry in self._of(table) for name, value in entry.settings.items()}

    def columns_of(self, table: Table) -> dict[str, dict[str, Any]]:
        return {name: field for entry in self._of(table) for name, field in entry.columns.items()}

    def check_tables(self, tables: Iterable[Table]) -> None:
        """Raises UsageError for what is meant for a column that no table has, or for no table."""
        for problem in self._misfits(list(tables)):
            raise UsageError(f"{self.path}: {problem}", "correct the file")

    def _of(self, table: Table) -> Iterator[MappingEntry]:
        return (entry for entry in self.entries if entry.matches(table))

    def _misfits(self, tables: list[Table]) -> Iterator[str]:
        for entry in self.entries:
            matched = [table for table in tables if entry.matches(table)]
            if not matched:
                yield f"no table matches '{entry.pattern.text}'"
                continue
            there = {column.name for table in matched for column in table.columns}
            yield from (f"'{entry.pattern.text}' has no column '{name}'" for name in entry.columns if name not in there)


def load_mapping(path: str) -> MappingFile:
    """Raises UsageError when the file cannot be read, or with all that is wrong in it. ``path`` is "" for none."""
    if not path:
        return MappingFile("", ())
    root, problems = open_document(path, "search-mapping file")
    root.finish(("tables",))
    tables = root.mapping("tables")
    if tables is None:
        root.problem("tables is missing (write one, like 'tables: {shop.orders: {columns: …}}')")
        entries: list[MappingEntry] = []
    else:
        entries = [entry for key in list(tables.keys()) if (entry := _entry(tables, key)) is not None]
    problems.check()
    return MappingFile(path, tuple(entries))


def _entry(tables: YamlMapping, key: str) -> MappingEntry | None:
    try:
        pattern = TablePattern.parse(key)
    except ValueError as error:
        tables.problem(f"'{key}' {error}", key)
        return None
    mapping = tables.mapping(key)
    if mapping is None:
        return MappingEntry(pattern, {}, {})
    mapping.finish(ENTRY_KEYS)
    settings = _plain_mapping(mapping, "settings")
    columns = _plain_mapping(mapping, "columns")
    for name, field in columns.items():
        if not isinstance(field, dict) or not isinstance(field.get("type"), str):
            mapping.problem(f"column '{name}' of '{key}' has no type (write one, like '{name}: {{type: keyword}}')", "columns")
    return MappingEntry(pattern, settings, columns)


def _plain_mapping(mapping: YamlMapping, key: str) -> dict[str, Any]:
    found = _typed(mapping.plain(key)) if mapping.mapping(key) is not None else {}
    assert isinstance(found, dict)
    return found


def _typed(value: object) -> object:
    """Returns the JSON value of YAML's texts: whole numbers, true and false; anything else stays text, which servers
    read as well."""
    match value:
        case dict():
            return {name: _typed(each) for name, each in value.items()}
        case list():
            return [_typed(each) for each in value]
        case "true" | "false":
            return parse_switch(value)
        case str() if value.isascii() and value.isdigit():
            return int(value)
        case _:
            return value
