"""Tables that commands added to a group and removed from it, under ``selection`` in the state bucket.

A group's tables are those of the replicator's configuration, and the added ones, without the removed ones. The newest
command wins: adding ends a removal, and the other way round. A table that was added by its name stays although a
pattern removes it. When the configuration has caught up, an entry is forgotten.

Entries are patterns with a schema (``shared.wire.table``), as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.wishes import WishKey
from pgsluice.shared.wire.table import NamePattern, TablePattern


@dataclass(frozen=True, slots=True)
class TableSelection:
    """``configured`` are the tables that the configuration of the last started replicator names, for readers.
    ``without_copy``: added tables that joined although rows of them are missing at the targets."""

    configured: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    without_copy: tuple[str, ...] = ()

    def add(self, text: str, *, without_copy: bool = False) -> TableSelection:
        return replace(
            self,
            added=(*_without(self.added, text), text),
            removed=_without(self.removed, text),
            without_copy=(*_without(self.without_copy, text), *([text] if without_copy else [])),
        )

    def remove(self, text: str) -> TableSelection:
        return replace(
            self,
            added=_without(self.added, text),
            removed=(*_without(self.removed, text), text),
            without_copy=_without(self.without_copy, text),
        )

    def caught_up(self, configured: Iterable[TablePattern]) -> TableSelection:
        """Returns the selection without entries that ``configured`` contains; if it is empty, a publication's tables
        apply."""
        patterns = list(configured)
        texts = tuple(qualified_text(pattern) for pattern in patterns)
        added = tuple(text for text in self.added if not any(_covers(pattern, text) for pattern in patterns))
        asked_for = [*patterns, *map(TablePattern.parse, added)]
        removed = tuple(text for text in self.removed if not patterns or any(_meets(pattern, text) for pattern in asked_for))
        return TableSelection(texts, added, removed, tuple(text for text in self.without_copy if text in added))


NO_SELECTION = TableSelection()


SELECTION = WishKey("selection", NO_SELECTION)


async def load_selection(bucket: StateBucket) -> TableSelection:
    """Returns the selection; an empty one also where there is no bucket."""
    return await SELECTION.load(bucket) if await bucket.exists() else NO_SELECTION


def qualified_text(pattern: TablePattern) -> str:
    """Returns ``pattern``, which has a schema, as an entry."""
    assert pattern.schema is not None
    return f"{_text(pattern.schema)}.{_text(pattern.name)}"


def exact_text(schema: str, table: str) -> str:
    """Returns the entry for that table alone."""
    return f"{_text(NamePattern.exact(schema))}.{_text(NamePattern.exact(table))}"


def _text(pattern: NamePattern) -> str:
    """Quotes the name only if it needs quotes."""
    needs_none = pattern.is_name and not set(pattern.name) & set('."*')
    return pattern.name if needs_none else pattern.text


def _without(entries: tuple[str, ...], text: str) -> tuple[str, ...]:
    pattern = TablePattern.parse(text)
    return tuple(entry for entry in entries if not _covers(pattern, entry))


def _covers(pattern: TablePattern, text: str) -> bool:
    """Returns whether ``pattern`` matches every table that the entry matches, judged without a list of tables."""
    other = TablePattern.parse(text)
    if qualified_text(pattern) == text:
        return True
    return other.is_name and other.schema is not None and pattern.matches(other.schema.name, other.name.name)


def _meets(pattern: TablePattern, text: str) -> bool:
    """Returns whether both can match one table."""
    other = TablePattern.parse(text)
    if not pattern.is_name:
        return not other.is_name or _covers(pattern, text)
    return _covers(other, qualified_text(pattern))
