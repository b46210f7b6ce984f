"""Tables that the current batch alters, for its tasks: rows from before a definition become documents of the later form.

When a task gets them, the table's index is the new one. Rows that come before the definition, in its transaction, have
the earlier columns; each of their documents goes through the steps that follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pgsluice.shared.wire.table import Table, Value
from pgsluice.worker.sinks.search.definitions.index_alteration import AlterationStep, altered_document
from pgsluice.worker.sinks.search.document import DocumentForm, Fields, document_of, read_fields
from pgsluice.worker.sinks.search.document_fold import At


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """``names`` are all that its rows arrive under, ``alias`` is what its documents are searched by now. Picklable."""

    oid: int
    names: frozenset[str]
    alias: str
    steps: tuple[AlterationStep, ...]

    def steps_behind(self, at: At) -> tuple[AlterationStep, ...]:
        return tuple(step for step in self.steps if step.at > at)


@dataclass(frozen=True, slots=True)
class AlteredBatch:
    """The batch whose definitions are carried out, by the last sequences of its partitions; and its tables. Picklable."""

    sequences: frozenset[int]
    tables: tuple[AlteredTable, ...]

    def steps_of(self, table: Table, at: At) -> tuple[str, tuple[AlterationStep, ...]]:
        """Returns the destination of documents of rows of ``table`` at that position, by alias, and their steps."""
        for altered in self.tables:
            if altered.oid == table.oid and table.qualified_name in altered.names:
                return altered.alias, altered.steps_behind(at)
        return "", ()


@dataclass(frozen=True)
class AlteredForm(DocumentForm):
    """The form of rows that come before ``steps``."""

    steps: tuple[AlterationStep, ...] = ()

    def documents(self, columns: Sequence[Sequence[Value]], count: int) -> list[bytes]:
        lines = super().documents(columns, count)
        return [document_of(altered_document(read_fields(line), self.steps)) for line in lines]

    def known_fields(self, row: Sequence[Value]) -> tuple[Fields, tuple[str, ...]]:
        known, missing = super().known_fields(row)
        for step in self.steps:
            filled = {name for name in step.filled if name not in missing}
            known, missing = step.of_document(known), step.of_names(missing)
            known = {name: value for name, value in known.items() if name not in missing or name in filled}
        return known, missing

    @cached_property
    def field_names(self) -> frozenset[str]:
        names = tuple(super().field_names)
        for step in self.steps:
            names = (*step.of_names(names), *step.filled)
        return frozenset(names)
