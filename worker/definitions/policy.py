"""The user's policy for definitions of each kind, for all tables or for the tables of a pattern.

    ddl: apply                      apply, stop or ignore: default for kinds without another choice
    ddl-policy:
      drop-column: keep             a kind, and its action
      shop.* drop-table: drop       the same for tables of a pattern (``shared.wire.table``); the last match wins

``stop`` ends the worker before anything of the transaction is applied, until an operator accepts the definition as
done.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

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
    alters_values,
    differences_of,
)
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.definition import (
    MADE_AS_PARTITION,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import TableName, TablePattern


class DefinitionKind(enum.StrEnum):
    """The kinds of definitions, as the configuration names them."""

    ADD_COLUMN = "add-column"
    DROP_COLUMN = "drop-column"
    RENAME_COLUMN = "rename-column"
    ALTER_TYPE = "alter-type"
    RENAME_TABLE = "rename-table"
    NOT_NULL = "not-null"
    KEY = "key"
    ENUM = "enum"
    """Labels were added or renamed; or a type of any kind was renamed, or put into another schema."""
    TYPE = "type"
    """Attributes of a composite type, or what a domain refuses."""
    VOLATILE_DEFAULT = "volatile-default"
    """A column was added, and each existing row has a different value in it."""
    REWRITE = "rewrite"
    """Values of existing rows changed."""
    ATTACH_PARTITION = "attach-partition"
    DETACH_PARTITION = "detach-partition"
    DROP_TABLE = "drop-table"
    UNKNOWN = "unknown"


class DefinitionAction(enum.StrEnum):
    APPLY = "apply"
    """The target is altered as the source was."""
    KEEP = "keep"
    """The target keeps what the source has no more, and takes rows without it."""
    DROP = "drop"
    DELETE = "delete"
    """Rows of the partition are deleted."""
    CAST = "cast"
    """The target converts the values it has: the user vouches that the source's were converted and not computed."""
    NULL = "null"
    """Existing rows have NULL in the new column."""
    RECOPY = "recopy"
    """The table is copied again: before the group's ledger has that, it acts like ``stop``."""
    IGNORE = "ignore"
    STOP = "stop"


ACTIONS: Mapping[DefinitionKind, tuple[DefinitionAction, ...]] = {
    DefinitionKind.ADD_COLUMN: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.DROP_COLUMN: (DefinitionAction.APPLY, DefinitionAction.KEEP, DefinitionAction.STOP),
    DefinitionKind.RENAME_COLUMN: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.ALTER_TYPE: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.RENAME_TABLE: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.NOT_NULL: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.KEY: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.ENUM: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.TYPE: (DefinitionAction.APPLY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.VOLATILE_DEFAULT: (DefinitionAction.RECOPY, DefinitionAction.NULL, DefinitionAction.STOP),
    DefinitionKind.REWRITE: (DefinitionAction.RECOPY, DefinitionAction.CAST, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.ATTACH_PARTITION: (DefinitionAction.RECOPY, DefinitionAction.IGNORE, DefinitionAction.STOP),
    DefinitionKind.DETACH_PARTITION: (DefinitionAction.KEEP, DefinitionAction.DELETE, DefinitionAction.STOP),
    DefinitionKind.DROP_TABLE: (DefinitionAction.KEEP, DefinitionAction.DROP, DefinitionAction.STOP),
    DefinitionKind.UNKNOWN: (DefinitionAction.STOP, DefinitionAction.IGNORE),
}
"""The permitted actions, the default first."""

_KINDS: Mapping[type[Difference], DefinitionKind] = {
    TableRenamed: DefinitionKind.RENAME_TABLE,
    ColumnAdded: DefinitionKind.ADD_COLUMN,
    ColumnPublished: DefinitionKind.ADD_COLUMN,
    ColumnDropped: DefinitionKind.DROP_COLUMN,
    ColumnRenamed: DefinitionKind.RENAME_COLUMN,
    TypeAltered: DefinitionKind.ALTER_TYPE,
    NotNullAltered: DefinitionKind.NOT_NULL,
    KeyAltered: DefinitionKind.KEY,
    PartitionAttached: DefinitionKind.ATTACH_PARTITION,
    PartitionDetached: DefinitionKind.DETACH_PARTITION,
}

_NOTHING = {DefinitionAction.IGNORE, DefinitionAction.KEEP, DefinitionAction.NULL}

_FOR_EACH_ROW, _OF_A_TYPE, _STORED_OTHERWISE = 2, 4, 8
"""Reasons of a rewrite (``TableRewritten``)."""


@dataclass(frozen=True, slots=True)
class _Choice:
    kind: DefinitionKind
    pattern: TablePattern | None
    action: DefinitionAction


@dataclass(frozen=True, slots=True)
class Policies:
    """``general`` is ``ddl``. Picklable."""

    general: DefinitionAction = DefinitionAction.APPLY
    choices: Sequence[_Choice] = ()

    @classmethod
    def parse(cls, general: str, pairs: Mapping[str, str]) -> Policies:
        """Raises UsageError that names the key."""
        return cls(DefinitionAction(general), tuple(_choice(key, action) for key, action in pairs.items()))

    def action(self, kind: DefinitionKind, table: TableName | None) -> DefinitionAction:
        """``table`` is the source's; None for what concerns no single one, like a type."""
        asked = self.asked(kind, table)
        if asked is not None:
            return asked
        actions = ACTIONS[kind]
        ignoring = [action for action in actions if action in _NOTHING] if self.general is DefinitionAction.IGNORE else []
        return (ignoring or actions)[0]

    def asked(self, kind: DefinitionKind, table: TableName | None) -> DefinitionAction | None:
        """Returns the explicit choice, other than ``apply`` and ``ignore`` for all kinds; None without one."""
        for choice in reversed(self.choices):
            fits = choice.pattern is None or (table is not None and choice.pattern.matches(*table))
            if choice.kind is kind and fits:
                return choice.action
        return DefinitionAction.STOP if self.general is DefinitionAction.STOP else None


DEFAULT_POLICIES = Policies()


def kind_of(difference: Difference) -> DefinitionKind:
    # a single kind: a type's name may be altered without the type
    if isinstance(difference, TypeAltered) and difference.is_same:
        return DefinitionKind.ENUM
    return _KINDS[type(difference)]


def kinds_of(definition: PublishedDefinition) -> list[DefinitionKind]:
    """Returns the kinds of a definition, each once; empty if it alters nothing that rows carry. All of them are about
    the table of ``table_of``."""
    event, was = definition.event, definition.previous
    match event:
        case TableDefined() | TablePublished():
            altered = [each for each in differences_of(definition) if not _came_empty(each, definition)]
            return list(dict.fromkeys(map(kind_of, altered)))
        case TypeDefined():
            # a single kind: the previous definition is a table or a type, and nothing else
            return _kinds_of_type(was, event) if isinstance(was, TypeDefined) else []
        case TableRewritten(reason=reason):
            return rewrite_kinds(reason)
        case TableGone():
            return [DefinitionKind.DROP_TABLE]
        case DefinitionUnknown():
            return [DefinitionKind.UNKNOWN]
        case TableUnpublished():
            return []
        case unreachable:
            assert_never(unreachable)


def _came_empty(difference: Difference, definition: PublishedDefinition) -> bool:
    """Returns whether it is a partition without rows."""
    if not isinstance(difference, PartitionAttached):
        return False
    return definition.event.tag == MADE_AS_PARTITION or difference.partition.oid in definition.empty


def _kinds_of_type(was: TypeDefined, now: TypeDefined) -> list[DefinitionKind]:
    named = [DefinitionKind.ENUM] if (was.schema, was.name, was.labels) != (now.schema, now.name, now.labels) else []
    return [*named, DefinitionKind.TYPE] if alters_values(was, now) else named


def rewrite_kinds(reason: int) -> list[DefinitionKind]:
    """Returns the kinds for a rewrite; a change of the storage alone has none."""
    if reason == _STORED_OTHERWISE:
        return []
    return [DefinitionKind.VOLATILE_DEFAULT] if reason & _FOR_EACH_ROW and not reason & _OF_A_TYPE else [DefinitionKind.REWRITE]


def table_of(definition: PublishedDefinition) -> TableName | None:
    """Returns the source's table, by the name that it had before; None for what concerns no single one."""
    event, was = definition.event, definition.previous
    match event:
        case TableDefined(table=table) | TablePublished(table=table):
            named = was if isinstance(was, TableDefinition) else table
            return named.schema, named.name
        case TableGone(schema=schema, name=name) | TableRewritten(schema=schema, name=name):
            return schema, name
        case TableUnpublished(schema=schema, name=name):
            return schema, name
        case TypeDefined() | DefinitionUnknown():
            return None
        case unreachable:
            assert_never(unreachable)


def _choice(key: str, text: str) -> _Choice:
    pattern, _, name = key.strip().rpartition(" ")
    try:
        kind = DefinitionKind(name)
    except ValueError:
        raise UsageError(
            f"ddl-policy: {name!r} is not a kind of schema change", f"the kinds are {', '.join(DefinitionKind)}"
        ) from None
    if text not in ACTIONS[kind]:
        raise UsageError(f"ddl-policy: {text!r} cannot be done about {name}", f"choose one of {', '.join(ACTIONS[kind])}")
    try:
        return _Choice(kind, TablePattern.parse(pattern) if pattern else None, DefinitionAction(text))
    except ValueError as error:
        raise UsageError(f"ddl-policy: {pattern!r} {error}", "write a pattern and a kind, like 'shop.* drop-table'") from None
