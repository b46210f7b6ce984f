"""Alterations of a table's documents by definitions of the source: pure.

A definition becomes an ``AlterationStep``: fields that are renamed, removed, converted to another type, and added to
older documents. An alteration that a document has too little data for stops the worker, with the table to be indexed
again.

Fields correspond to the source's columns. A column that a rule or a route renamed has no field of its name, and is left
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, assert_never

import orjson

from pgsluice.shared.definitions.difference import (
    ColumnAdded,
    ColumnDropped,
    ColumnPublished,
    ColumnRenamed,
    Difference,
    KeyAltered,
    NotNullAltered,
    PartitionAttached,
    PartitionDetached,
    TableRenamed,
    TypeAltered,
    differences_of,
    key_of,
)
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import DefinedColumn, TableDefined, TableDefinition, TableGone, TablePublished, TypeDefined
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.worker.definitions.policy import DefinitionAction, DefinitionKind, Policies, kind_of, table_of
from pgsluice.worker.sinks.search.definitions.value_conversion import (
    NotConvertible,
    ValueConversion,
    column_of,
    conversion,
    keeps_text,
)
from pgsluice.worker.sinks.search.document import Fields
from pgsluice.worker.sinks.search.document_fold import At
from pgsluice.worker.sinks.search.mapping import Field
from pgsluice.worker.sinks.search.server_kind import Properties, stands_for


class Remapped(NamedTuple):
    """A field whose mapping becomes ``definition`` if its type was ``before``: another one is a rule's work."""

    before: str
    definition: dict[str, Any]


class Filled(NamedTuple):
    """The value for documents without the field. ``text`` is JSON."""

    text: bytes
    definition: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AlterationStep:
    """The effect of the definition at ``at`` on documents, all at once; names are of fields. ``renamed``: earlier and
    later names. ``converted`` are by the earlier, ``remapped`` and ``filled`` by the later name. Picklable."""

    at: At
    renamed: Mapping[str, str] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    converted: Mapping[str, ValueConversion] = field(default_factory=dict)
    remapped: Mapping[str, Remapped] = field(default_factory=dict)
    filled: Mapping[str, Filled] = field(default_factory=dict)

    def of_document(self, fields: Fields) -> Fields:
        """Returns ``fields`` after the step."""
        altered: Fields = {name: orjson.Fragment(there.text) for name, there in self.filled.items()}
        for name, value in fields.items():
            if name not in self.removed:
                convert = self.converted.get(name)
                altered[self.renamed.get(name, name)] = value if convert is None else convert(value)
        return altered

    def alters(self, properties: Properties) -> bool:
        """Returns whether the step changes documents of an index with these fields."""
        touched = (*self.renamed, *self.removed, *self.converted)
        return bool(self.filled) or any(name in properties for name in touched) or self.of_properties(properties) != properties

    def of_names(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.renamed.get(name, name) for name in names if name not in self.removed)

    def of_properties(self, properties: Properties) -> Properties:
        altered = {name: there.definition for name, there in self.filled.items()}
        for name, there in properties.items():
            if name not in self.removed:
                later = self.renamed.get(name, name)
                remapped = self.remapped.get(later)
                fits = remapped is not None and stands_for(there.get("type", ""), remapped.before)
                altered[later] = remapped.definition if fits and remapped is not None else there
        return altered


def altered_properties(properties: Properties, steps: Sequence[AlterationStep]) -> Properties:
    for step in steps:
        properties = step.of_properties(properties)
    return properties


def alters_any(properties: Properties, steps: Sequence[AlterationStep]) -> bool:
    """Returns whether any step alters an index with these fields."""
    return any(step.alters(altered_properties(properties, steps[:i])) for i, step in enumerate(steps))


def altered_document(fields: Fields, steps: Sequence[AlterationStep]) -> Fields:
    for step in steps:
        fields = step.of_document(fields)
    return fields


@dataclass(frozen=True, slots=True)
class Altering:
    """One definition of a table to carry out. ``was_fields`` and ``now_fields`` are the fields of the columns before
    and after, by the numbers of the columns. ``is_rewritten``: the transaction rewrote the table's rows."""

    definition: PublishedDefinition
    position: Position
    was_fields: Mapping[int, Field]
    now_fields: Mapping[int, Field]
    is_rewritten: bool

    @property
    def at(self) -> At:
        return At(self.position.commit_lsn, self.position.ordinal)

    def step(self, policies: Policies) -> AlterationStep:
        """Returns the step, as far as ``policies`` apply it. Raises TerminalError for alterations that a document has
        too little data for."""
        step = AlterationStep(self.at)
        for difference in differences_of(self.definition):
            action = policies.action(kind_of(difference), table_of(self.definition))
            if action not in (DefinitionAction.IGNORE, DefinitionAction.KEEP, DefinitionAction.STOP, DefinitionAction.RECOPY):
                step = self._after(step, difference)
        return step

    def _after(self, step: AlterationStep, difference: Difference) -> AlterationStep:
        match difference:
            case ColumnRenamed(was, now):
                names = self.was_fields[was.number].name, self.now_fields[now.number].name
                return replace(step, renamed={**step.renamed, names[0]: names[1]})
            case ColumnDropped(column):
                return replace(step, removed=step.removed | {self.was_fields[column.number].name})
            case TypeAltered(was, now):
                return step if difference.is_same else self._converted(step, was, now)
            case ColumnAdded(column):
                return self._filled(step, column)
            case KeyAltered(identity_was=was, identity_now=now):
                if was != now:
                    self._refuse("rows are identified by other columns from here on, and so are documents")
                return step
            case TableRenamed() | ColumnPublished() | NotNullAltered() | PartitionAttached() | PartitionDetached():
                return step
            case unreachable:
                assert_never(unreachable)

    def _converted(self, step: AlterationStep, was: DefinedColumn, now: DefinedColumn) -> AlterationStep:
        try:
            convert = conversion(was, now, is_rewritten=self.is_rewritten)
        except NotConvertible:
            self._refuse(f"documents do not contain the values of column '{now.name}' as {now.type_name}")
        if was.number in key_of(_table(self.definition)) and not keeps_text(convert, was):
            self._refuse(f"column '{now.name}' of the key has other texts from here on, and so have the ids of documents")
        before, after = self.was_fields[was.number], self.now_fields[now.number]
        if convert is not None:
            step = replace(step, converted={**step.converted, before.name: convert})
        if before.definition != after.definition:
            remapped = Remapped(before.definition["type"], after.definition)
            step = replace(step, remapped={**step.remapped, after.name: remapped})
        return step

    def _filled(self, step: AlterationStep, column: DefinedColumn) -> AlterationStep:
        if column.missing_differs:
            self._refuse(f"which value rows have in the new column '{column.name}' is not known: partitions differ")
        if column.missing is None:
            return step
        there = self.now_fields[column.number]
        (text,) = there.convert([column.missing.encode()]).whole()
        return replace(step, filled={**step.filled, there.name: Filled(text, there.definition)})

    def _refuse(self, why: str) -> NoReturn:
        raise refusal(".".join(table_of(self.definition) or ()), why, self.position)


def refusal(table: str, why: str, position: Position) -> TerminalError:
    return TerminalError(
        f"the source altered '{table}' (at {position}): {why}; nothing of the transaction was applied",
        f"run 'pgsluice search reindex {table}', which copies the table into a new index; or, if the index is to stay as it is, "
        f"'pgsluice ddl accept {position}'; then start again",
    )


def check_possible(definition: PublishedDefinition, position: Position, policies: Policies) -> None:
    """Raises TerminalError for what no index can be altered by, whichever it is."""
    event, was = definition.event, definition.previous
    # a single kind: tables that existed; other definitions have no documents
    if isinstance(event, TypeDefined) and isinstance(was, TypeDefined):
        labels = {label.oid: label.label for label in was.labels}
        if any(labels.get(label.oid, label.label) != label.label for label in event.labels):
            raise TerminalError(
                f"a label of '{was.schema}.{was.name}' is called otherwise (at {position}), and documents have its earlier name",
                "run 'pgsluice search reindex' for the tables that use the type, and 'pgsluice ddl accept "
                f"{position}'; then start again, nothing of the transaction was applied",
            )
    asked = [(DefinitionKind.DROP_TABLE, DefinitionAction.DROP)] if isinstance(event, TableGone) else []
    if isinstance(event, TableDefined | TablePublished):
        asked = [(DefinitionKind.DETACH_PARTITION, DefinitionAction.DELETE)]
    table = table_of(definition)
    for kind, action in asked:
        if policies.asked(kind, table) is action and _concerns(definition, kind):
            raise TerminalError(
                f"ddl-policy has {action} for {kind}, and indexes cannot do that ('{'.'.join(table or ())}' at {position})",
                f"remove the documents yourself, or keep them, run 'pgsluice ddl accept {position}' and start again",
            )


def _concerns(definition: PublishedDefinition, kind: DefinitionKind) -> bool:
    return isinstance(definition.event, TableGone) or any(kind_of(each) is kind for each in differences_of(definition))


def new_name(definition: PublishedDefinition, policies: Policies) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Returns the table's names before and after it, if it must be renamed."""
    renamed = [each for each in differences_of(definition) if isinstance(each, TableRenamed)]
    if not renamed or policies.action(DefinitionKind.RENAME_TABLE, table_of(definition)) is not DefinitionAction.APPLY:
        return None
    return renamed[0].was, renamed[0].now


def rows_table(definition: TableDefinition, schema: str, name: str) -> Table:
    """Returns the table as it appears in messages published as ``schema.name``."""
    columns = tuple(column_of(column) for column in definition.columns if column.is_published)
    return Table(definition.oid, schema, name, definition.replica_identity, columns)


def _table(definition: PublishedDefinition) -> TableDefinition:
    assert isinstance(definition.event, TableDefined | TablePublished)
    return definition.event.table
