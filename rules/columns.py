"""Finding a rule's columns in a table."""

from __future__ import annotations

from difflib import get_close_matches

from shared.table import Table


def column_index(table: Table, name: str) -> int:
    """Raises ValueError, with a sentence, when the table has no such column."""
    names = [column.name for column in table.columns]
    if name not in names:
        raise ValueError(f"there is no column '{name}'{_suggestion(name, names)}")
    return names.index(name)


def _suggestion(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
