"""The wire of definitions: messages in a source's write-ahead log about tables and types that were altered.

    logical message (transactional; ``pg_logical_emit_message``, manual: "Replication Management Functions")
      prefix   pgsluice.ddl.<group>
      content  one JSON object in UTF-8
        v      1
        token  the group's secret: every role may emit a message of any prefix, and only one with the token is believed
        kind   which of the following
        tag    the command's tag, like ALTER TABLE; "note" where a user asked for the message
      of each kind
        table         a table as the command left it: oid, schema, name, relkind, filenode, replica_identity
                      (pg_class.relreplident), identity_columns (numbers; all when it is FULL), published, and two lists:
                      columns     [number, name, type oid, type, typmod, not null, position in the primary key or null,
                                  identity, generated, missing or null, missing differs, published,
                                  how a nondeterministic collation compares or ""]
                      partitions  [oid, oid of the table above, schema, name, filenode, bound, constraint or null], in any depth;
                      more_partitions in its place: only the partitions that CREATE TABLE made or changed; the others stay
        published     the same; ALTER PUBLICATION named the table, which may have been published before
        unpublished   oid, schema, name: it is published no more, or only under another
        gone          oid, schema, name: it was dropped
        rewrite       oid, schema, name, reason (pg_event_trigger_table_rewrite_reason): values changed, without row messages
        type          oid, schema, name, type_kind (pg_type.typtype), base (of a domain, else ""), labels of an enum in their
                      order: [oid, label]. Of a composite type attributes: [number, name, type oid, type]; of a domain not_null
                      and constraints, its checks: [oid, name]; null of other kinds, and without these keys in messages of
                      earlier versions. A published table uses it; messages about those tables follow
        unknown       sqlstate: the command's effect could not be determined

A message has the place between the rows that its command had between the statements. After each comes an empty message
``pgsluice.pad``: a server queues a message by the end of its record and a row by the start, and where both are the same
place and in different subtransactions, the row would come first.

A type's name is ``format_type``'s with only pg_catalog in the search path; a value is text with the settings of every
pgsluice session. ``missing`` is the value in rows that existed before the column was added
(``pg_attribute.attmissingval``), and partitions may disagree about it. Keys that are not named here are ignored, and so
are elements after the last one of a column, a partition or a label.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar, assert_never

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.table import ReplicaIdentity

VERSION = 1

P = TypeVar("P")

MOST_BYTES = 16 << 20
"""The most bytes of a content that is read: a table of 1600 columns is 300 kB, a partition 200 bytes. A receiver may cut a
larger content to its first SIGNED_BYTES."""

SIGNED_BYTES = 4096
"""The first bytes of a content, which hold its token: jsonb sorts keys by length, and before the token come a version,
an oid, a kind, a tag and two names."""

_TOKEN = re.compile(rb'"token": ?"([^"\\]*)"')
_TAG = re.compile(rb'"tag": ?"([A-Z ]{1,64}|note)"')
_TOO_LARGE, _NOT_SUPPORTED = "54000", "0A000"  # SQLSTATEs program_limit_exceeded, feature_not_supported

MADE_AS_PARTITION = "CREATE TABLE"
"""The tag of a command whose partitions have no rows yet."""

NOTE_TAG = "note"
"""Tag of a message that a user requested, by ``pgsluice ddl note`` or its SQL function."""

_NUMBER, _TEXT, _FLAG, _NUMBER_OR_NULL, _TEXT_OR_NULL = (int,), (str,), (bool,), (int, type(None)), (str, type(None))

_COLUMN = (_NUMBER, _TEXT, _NUMBER, _TEXT, _NUMBER, _FLAG, _NUMBER_OR_NULL, _TEXT, _TEXT, _TEXT_OR_NULL, _FLAG, _FLAG, _TEXT)
_COLUMN_OF_EARLIER = _COLUMN[:-1]
_PARTITION = (_NUMBER, _NUMBER, _TEXT, _TEXT, _NUMBER, _TEXT, _TEXT_OR_NULL)
_LABEL = _CONSTRAINT = (_NUMBER, _TEXT)
_ATTRIBUTE = (_NUMBER, _TEXT, _NUMBER, _TEXT)
"""Allowed types of a list's elements."""


@dataclass(frozen=True, slots=True)
class DefinedColumn:
    """``number`` is ``attnum``, which stays through renames and is never reused. ``missing``: see above;
    ``missing_differs`` when partitions disagree about it, so that the value in older rows is unknown. ``is_published``:
    rows carry it. ``collation``: as ``table.Column`` has it; "" in the messages of functions that an earlier version
    installed."""

    number: int
    name: str
    type_oid: int
    type_name: str
    typmod: int
    not_null: bool
    primary_key_position: int | None
    identity: str
    generated: str
    missing: str | None
    missing_differs: bool
    is_published: bool
    collation: str = ""


@dataclass(frozen=True, slots=True)
class DefinedPartition:
    """``filenode`` is 0 for a partitioned partition. ``constraint`` is the condition for the root's rows in it; None
    where the source could not determine it without waiting for a lock."""

    oid: int
    parent_oid: int
    schema: str
    name: str
    filenode: int
    bound: str
    constraint: str | None


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table after one command. ``columns`` are all that it has, by number, published or not. ``adds_partitions``:
    ``partitions`` are only the ones that the command made or changed; the table keeps its others."""

    oid: int
    schema: str
    name: str
    kind: str
    filenode: int
    replica_identity: ReplicaIdentity
    identity_columns: tuple[int, ...]
    is_published: bool
    columns: tuple[DefinedColumn, ...]
    partitions: tuple[DefinedPartition, ...]
    adds_partitions: bool = False

    def after(self, before: TableDefinition | None) -> TableDefinition:
        """Returns the same definition with all partitions of the table; ``before`` is the definition before the command."""
        if not self.adds_partitions:
            return self
        found = {each.oid: each for each in (*(before.partitions if before is not None else ()), *self.partitions)}
        return replace(self, partitions=tuple(found[oid] for oid in sorted(found)), adds_partitions=False)


@dataclass(frozen=True, slots=True)
class TableDefined:
    """The table is published, or the group's patterns match it."""

    tag: str
    table: TableDefinition


@dataclass(frozen=True, slots=True)
class TablePublished:
    tag: str
    table: TableDefinition


@dataclass(frozen=True, slots=True)
class TableUnpublished:
    tag: str
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class TableGone:
    """``schema`` and ``name`` are the last ones."""

    tag: str
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class TableRewritten:
    """``reason`` adds up: 1 logged or unlogged, 2 a default for each row, 4 a type, 8 an access method."""

    tag: str
    oid: int
    schema: str
    name: str
    reason: int


@dataclass(frozen=True, slots=True)
class EnumLabel:
    """``oid`` stays through renames of the label."""

    oid: int
    label: str


@dataclass(frozen=True, slots=True)
class TypeAttribute:
    """An attribute of a composite type. ``number`` stays through renames and is never given again."""

    number: int
    name: str
    type_oid: int
    type_name: str


@dataclass(frozen=True, slots=True)
class DomainConstraint:
    """A CHECK constraint of a domain. ``oid`` stays through renames."""

    oid: int
    name: str


@dataclass(frozen=True, slots=True)
class TypeDefined:
    """``attributes`` is set only for composite types, ``constraints`` only for domains, and neither in messages of
    earlier versions."""

    tag: str
    oid: int
    schema: str
    name: str
    kind: str
    base: str
    labels: tuple[EnumLabel, ...]
    attributes: tuple[TypeAttribute, ...] | None = None
    constraints: tuple[DomainConstraint, ...] | None = None
    not_null: bool = False

    @property
    def is_whole(self) -> bool:
        """Returns whether the message has everything that the type's values depend on."""
        return not ((self.kind == "c" and self.attributes is None) or (self.kind == "d" and self.constraints is None))


@dataclass(frozen=True, slots=True)
class DefinitionUnknown:
    tag: str
    sqlstate: str


DefinitionEvent = TableDefined | TablePublished | TableUnpublished | TableGone | TableRewritten | TypeDefined | DefinitionUnknown


@dataclass(frozen=True, slots=True)
class DefinitionMessage:
    """One message. Whether to believe it is the reader's decision: see ``believed``."""

    token: str = field(repr=False)
    event: DefinitionEvent

    def is_signed_with(self, token: str) -> bool:
        """Returns whether the group's function emitted it, whose secret ``token`` is."""
        return bool(token) and hmac.compare_digest(self.token.encode(), token.encode())

    def encode(self) -> bytes:
        return orjson.dumps({"v": VERSION, "token": self.token} | _event_fields(self.event))

    @classmethod
    def decode(cls, content: bytes) -> DefinitionMessage:
        """Raises WireError, and nothing else, for what is not of this form."""
        try:
            fields: Any = orjson.loads(content)
            if _number(fields, "v") != VERSION:
                raise ValueError(f"version {VERSION} is known")
            return cls(_text(fields, "token"), _event(fields))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(
                f"a message about a definition is malformed ({type(error).__name__})",
                "a newer pgsluice installed the capture, or another program emitted it",
            ) from None


_column_values = attrgetter(*DefinedColumn.__slots__)
_partition_values = attrgetter(*DefinedPartition.__slots__)


def believed(content: bytes, token: str) -> DefinitionEvent | None:
    """Returns what the group's function reported, whose secret is ``token``. Returns None without a token, and for the
    messages of anything else, which are not parsed. Returns DefinitionUnknown for a content that was cut, or whose form only a
    later version knows."""
    signed = _TOKEN.search(content, 0, SIGNED_BYTES)
    if not token or signed is None or not hmac.compare_digest(signed[1], token.encode()):
        return None
    try:
        message = DefinitionMessage.decode(content)
    except WireError:
        tag = _TAG.search(content, 0, SIGNED_BYTES)
        return DefinitionUnknown(
            "" if tag is None else tag[1].decode(), _TOO_LARGE if len(content) == SIGNED_BYTES else _NOT_SUPPORTED
        )
    return message.event if message.is_signed_with(token) else None


def _event_fields(event: DefinitionEvent) -> dict[str, Any]:
    match event:
        case TableDefined(tag, table):
            return {"kind": "table", "tag": tag} | _table_fields(table)
        case TablePublished(tag, table):
            return {"kind": "published", "tag": tag} | _table_fields(table)
        case TableUnpublished(tag, oid, schema, name):
            return {"kind": "unpublished", "tag": tag, "oid": oid, "schema": schema, "name": name}
        case TableGone(tag, oid, schema, name):
            return {"kind": "gone", "tag": tag, "oid": oid, "schema": schema, "name": name}
        case TableRewritten(tag, oid, schema, name, reason):
            return {"kind": "rewrite", "tag": tag, "oid": oid, "schema": schema, "name": name, "reason": reason}
        case TypeDefined():
            return {"kind": "type"} | _type_fields(event)
        case DefinitionUnknown(tag, sqlstate):
            return {"kind": "unknown", "tag": tag, "sqlstate": sqlstate}
        case _:
            assert_never(event)


def _type_fields(event: TypeDefined) -> dict[str, Any]:
    attributes, constraints = event.attributes, event.constraints
    return {
        "tag": event.tag,
        "oid": event.oid,
        "schema": event.schema,
        "name": event.name,
        "type_kind": event.kind,
        "base": event.base,
        "labels": [[label.oid, label.label] for label in event.labels],
        "attributes": attributes and [[each.number, each.name, each.type_oid, each.type_name] for each in attributes],
        "constraints": constraints and [[each.oid, each.name] for each in constraints],
        "not_null": event.not_null,
    }


def _table_fields(table: TableDefinition) -> dict[str, Any]:
    return {
        "oid": table.oid,
        "schema": table.schema,
        "name": table.name,
        "relkind": table.kind,
        "filenode": table.filenode,
        "replica_identity": table.replica_identity.value,
        "identity_columns": table.identity_columns,
        "published": table.is_published,
        "columns": [_column_values(column) for column in table.columns],
        "more_partitions" if table.adds_partitions else "partitions": [
            _partition_values(partition) for partition in table.partitions
        ],
    }


def _event(fields: dict[str, Any]) -> DefinitionEvent:
    tag = _text(fields, "tag")
    match fields["kind"]:
        case "table":
            return TableDefined(tag, _table(fields))
        case "published":
            return TablePublished(tag, _table(fields))
        case "unpublished":
            return TableUnpublished(tag, *_named(fields))
        case "gone":
            return TableGone(tag, *_named(fields))
        case "rewrite":
            return TableRewritten(tag, *_named(fields), _number(fields, "reason"))
        case "type":
            return _type(tag, fields)
        case "unknown":
            return DefinitionUnknown(tag, _text(fields, "sqlstate"))
        case _:
            raise ValueError("unknown kind")


def _type(tag: str, fields: dict[str, Any]) -> TypeDefined:
    return TypeDefined(
        tag,
        *_named(fields),
        kind=_text(fields, "type_kind"),
        base=_text(fields, "base"),
        labels=tuple(EnumLabel(*_values(values, _LABEL)) for values in _list(fields, "labels")),
        attributes=_told_parts(fields, "attributes", TypeAttribute, _ATTRIBUTE),
        constraints=_told_parts(fields, "constraints", DomainConstraint, _CONSTRAINT),
        not_null=bool(_of_types(fields.get("not_null", False), _FLAG)),
    )


def _told_parts(
    fields: dict[str, Any], key: str, part: Callable[..., P], types: Sequence[tuple[type, ...]]
) -> tuple[P, ...] | None:
    """Returns None if the message lacks the parts."""
    return None if fields.get(key) is None else tuple(part(*_values(values, types)) for values in _list(fields, key))


def _table(fields: dict[str, Any]) -> TableDefinition:
    oid, schema, name = _named(fields)
    adds = "partitions" not in fields
    partitions = "more_partitions" if adds else "partitions"
    columns = tuple(_column(values) for values in _list(fields, "columns"))
    identity_columns = tuple(_of_types(number, _NUMBER) for number in _list(fields, "identity_columns"))
    numbers = {column.number for column in columns}
    if len(numbers) != len(columns) or not numbers.issuperset(identity_columns):
        raise ValueError("column numbers")
    return TableDefinition(
        oid=oid,
        schema=schema,
        name=name,
        kind=_text(fields, "relkind"),
        filenode=_number(fields, "filenode"),
        replica_identity=ReplicaIdentity(fields["replica_identity"]),
        identity_columns=identity_columns,
        is_published=_of_types(fields["published"], _FLAG),
        columns=columns,
        partitions=tuple(DefinedPartition(*_values(values, _PARTITION)) for values in _list(fields, partitions)),
        adds_partitions=adds,
    )


def _column(values: object) -> DefinedColumn:
    is_of_earlier = isinstance(values, list) and len(values) == len(_COLUMN_OF_EARLIER)
    return DefinedColumn(*_values(values, _COLUMN_OF_EARLIER if is_of_earlier else _COLUMN))


def _named(fields: dict[str, Any]) -> tuple[int, str, str]:
    return _number(fields, "oid"), _text(fields, "schema"), _text(fields, "name")


def _text(fields: dict[str, Any], key: str) -> str:
    return str(_of_types(fields[key], _TEXT))


def _number(fields: dict[str, Any], key: str) -> int:
    return int(_of_types(fields[key], _NUMBER))


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    return list(_of_types(fields[key], (list,)))


def _values(values: object, types: Sequence[tuple[type, ...]]) -> list[Any]:
    """Returns the elements that ``types`` are the types of."""
    given = _of_types(values, (list,))
    if len(given) < len(types):
        raise ValueError("elements are missing")
    return [_of_types(value, kinds) for value, kinds in zip(given, types, strict=False)]


def _of_types(value: object, types: tuple[type, ...]) -> Any:
    if type(value) not in types:
        raise TypeError
    return value
