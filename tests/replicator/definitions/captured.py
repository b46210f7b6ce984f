"""A source whose definitions are captured, and what its slot tells of them, written short.

    R t(*id,note)                        Relation; * is a column of the replica identity
    I t 1,a     U t 2,b old 1,NULL     D t 1,NULL     T t
    table t(*1:id:integer!, 3:n:integer=7)   a description: numbers, types, ! not null, =missing, ? missing differs, - not sent
    type t e[0:sad,1:glad]    type t c(1:a:integer)    type t dinteger!{t_check}     enum, composite type, domain
    unknown ALTER TABLE 42P01            and so on: kind, name, and what the kind has

Schema public is left out. A description ends with ``rewritten`` when an earlier one of the table named another file.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, assert_never

import psycopg

from pgsluice.replicator.definitions.capture import install_capture
from pgsluice.replicator.definitions.installation import Installation
from pgsluice.replicator.source.source import Source
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.pgoutput.decoder import decode_message
from pgsluice.shared.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    Row,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.wire.definition import (
    DefinedColumn,
    DefinitionEvent,
    DefinitionMessage,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.names import PAD_PREFIX, GroupNames
from pgsluice.shared.wire.table import ReplicaIdentity, TablePattern, Unchanged
from tests.servers import Database

T = TypeVar("T")

SLOT = "captured"


def at_source(settings: PostgresSettings, ask: Callable[[Source], Awaitable[T]]) -> T:
    """What the coroutine that ``ask`` makes returns."""

    async def call() -> T:
        source = await Source.connect(settings)
        try:
            return await ask(source)
        finally:
            await source.close()

    return asyncio.run(call())


def install(database: Database, names: GroupNames, *patterns: str) -> str:
    """As the superuser; returns the token."""
    parsed = [TablePattern.parse(text) for text in patterns]
    installation = Installation(names, parsed, database.server.user)
    return at_source(database.settings, lambda source: install_capture(source, installation))


@dataclass
class Stream:
    """A slot of a publication, read from where it was read before."""

    database: Database
    names: GroupNames
    events: list[DefinitionEvent] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    _relations: dict[int, str] = field(default_factory=dict)
    _filenodes: dict[int, int] = field(default_factory=dict)
    _labels: dict[int, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, database: Database, names: GroupNames) -> Stream:
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        return cls(database, names)

    def after(self, *transactions: str) -> list[str]:
        """What the transactions leave in the stream, each said in a connection of its own, without their ends and the pad."""
        for transaction in transactions:
            self.database.execute(transaction)
        return self.read()

    def read(self) -> list[str]:
        lines = (self._line(message) for message in self._messages())
        return [line for line in lines if line is not None]

    def _messages(self) -> list[PgoutputMessage]:
        query = (
            b"SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'messages', 'true',"
            b" 'publication_names', %s)"
        )
        rows = self._reader.execute(query, [SLOT, f'"{self.names.publication}"'])
        return [decode_message(bytes(data)) for (data,) in rows]

    @cached_property
    def _reader(self) -> psycopg.Connection[tuple[Any, ...]]:
        """One for all reads, which need no session of their own."""
        connection = self.database.connect()
        weakref.finalize(self, connection.close)
        return connection

    def _line(self, message: PgoutputMessage) -> str | None:
        match message:
            case Begin() | Commit() | Origin() | Type():
                return None
            case Relation(oid, schema, name, _, columns):
                self._relations[oid] = short(schema, name)
                listed = ",".join("*" * column.identity_key + column.name for column in columns)
                return f"R {self._relations[oid]}({listed})"
            case Insert(oid, new):
                return f"I {self._relations[oid]} {row(new)}"
            case Update(oid, _, old, new):
                return f"U {self._relations[oid]} {row(new)}" + (f" old {row(old)}" if old else "")
            case Delete(oid, _, old):
                return f"D {self._relations[oid]} {row(old)}"
            case Truncate(_, _, oids):
                return "T " + ",".join(self._relations[oid] for oid in oids)
            case LogicalMessage(_, _, prefix, content):
                return self._message(prefix, content)
            case _:
                assert_never(message)

    def _message(self, prefix: str, content: bytes) -> str | None:
        if prefix != self.names.definitions_prefix:
            return None if prefix == PAD_PREFIX else f"M {prefix} {content.decode()}"
        message = DefinitionMessage.decode(content)
        self.events.append(message.event)
        self.tokens.append(message.token)
        self.contents.append(content)
        return self._event(message.event)

    def _event(self, event: DefinitionEvent) -> str:
        match event:
            case TableDefined(_, table):
                return f"table {self._described(table)}"
            case TablePublished(_, table):
                return f"published {self._described(table)}"
            case TableUnpublished(_, _, schema, name):
                return f"unpublished {short(schema, name)}"
            case TableGone(_, _, schema, name):
                return f"gone {short(schema, name)}"
            case TableRewritten(_, _, schema, name, reason):
                return f"rewrite {short(schema, name)} {reason}"
            case TypeDefined():
                return f"type {self._described_type(event)}"
            case DefinitionUnknown(tag, sqlstate):
                return f"unknown {tag} {sqlstate}"
            case _:
                assert_never(event)

    def _described_type(self, event: TypeDefined) -> str:
        labels = ",".join(f"{self._labels.setdefault(each.oid, len(self._labels))}:{each.label}" for each in event.labels)
        parts = [f"[{labels}]"] if event.kind == "e" else []
        if event.attributes is not None:
            parts.append("(" + ",".join(f"{each.number}:{each.name}:{each.type_name}" for each in event.attributes) + ")")
        if event.constraints is not None:
            parts.append("!" * event.not_null + "{" + ",".join(each.name for each in event.constraints) + "}")
        return f"{short(event.schema, event.name)} {event.kind}{event.base}{''.join(parts)}"

    def _described(self, table: TableDefinition) -> str:
        columns = ", ".join(column_text(table, column) for column in table.columns)
        marks = [] if table.is_published else ["unpublished"]
        marks += [] if table.replica_identity is ReplicaIdentity.DEFAULT else [f"identity {table.replica_identity}"]
        made = "+" if table.adds_partitions else ""
        marks += [f"{made}[{short(part.schema, part.name)} {part.bound}]" for part in table.partitions]
        if self._filenodes.setdefault(table.oid, table.filenode) != table.filenode:
            marks.append("rewritten")
            self._filenodes[table.oid] = table.filenode
        return " ".join([f"{short(table.schema, table.name)}({columns})", *marks])


def column_text(table: TableDefinition, column: DefinedColumn) -> str:
    missing = "?" if column.missing_differs else "" if column.missing is None else f"={column.missing}"
    sent = "" if column.is_published or not table.is_published else "-"
    key = "*" * (column.number in table.identity_columns)
    return f"{key}{column.number}:{column.name}:{column.type_name}{'!' * column.not_null}{missing}{sent}"


def short(schema: str, name: str) -> str:
    return name if schema == "public" else f"{schema}.{name}"


def row(values: Row) -> str:
    return ",".join(map(value_text, values))


def value_text(value: bytes | Unchanged | None) -> str:
    return value.decode() if isinstance(value, bytes) else "NULL" if value is None else "-"


def tables_of(events: Sequence[DefinitionEvent]) -> list[TableDefinition]:
    """What the descriptions among them describe."""
    return [event.table for event in events if isinstance(event, TableDefined | TablePublished)]
