"""Reports of a source about altered tables, and descriptors of tables: JSON that any role may have emitted there."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.definitions.difference import differences_of
from pgsluice.shared.definitions.wording import in_words
from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.definition import (
    DefinedColumn,
    DefinedPartition,
    DefinitionMessage,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.message import Descriptor
from pgsluice.shared.wire.published_definition import PublishedDefinition, added_columns, alters, concerned, kind_of
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table
from tests.fuzz.target import is_same, read


def feed(data: bytes) -> None:
    message = read(lambda: DefinitionMessage.decode(data), WireError)
    if message is not None:
        is_same(message, DefinitionMessage.decode(message.encode()))
        message.is_signed_with("secret")
    published = read(lambda: PublishedDefinition.decode(data), WireError)
    if published is not None:
        is_same(published, PublishedDefinition.decode(published.encode()))
        _look_at(published)
    descriptor = read(lambda: Descriptor.decode(data), WireError)
    if descriptor is not None:
        is_same(descriptor, Descriptor.decode(descriptor.encode()))


def _look_at(published: PublishedDefinition) -> None:
    """Reads the definition as its reader does when it applies it."""
    alters(published), concerned(published.event), kind_of(published.event), added_columns(published)
    differences_of(published), in_words(published)


def seeds() -> Iterator[bytes]:
    columns = (
        DefinedColumn(1, "id", 20, "bigint", -1, True, 1, "a", "", None, False, True),
        DefinedColumn(3, "note", 25, "text", -1, False, None, "", "", "none", False, True),
    )
    partition = DefinedPartition(16390, 16385, "shop", "orders_1", 16391, "FOR VALUES IN (1)", "(id = 1)")
    table = TableDefinition(16385, "shop", "orders", "p", 0, ReplicaIdentity.DEFAULT, (1,), True, columns, (partition,))
    before = TableDefinition(16385, "shop", "order", "p", 0, ReplicaIdentity.FULL, (1,), True, columns[:1], ())
    mood = TypeDefined("ALTER TYPE", 16400, "shop", "mood", "e", "", (EnumLabel(1, "sad"), EnumLabel(2, "glad")))
    for event in (
        TableDefined("ALTER TABLE", table),
        TablePublished("ALTER PUBLICATION", table),
        TableUnpublished("ALTER PUBLICATION", 16385, "shop", "orders"),
        TableGone("DROP TABLE", 16385, "shop", "orders"),
        TableRewritten("ALTER TABLE", 16385, "shop", "orders", 4),
        mood,
        DefinitionUnknown("ALTER TABLE", "57014"),
    ):
        yield DefinitionMessage("token", event).encode()
        yield PublishedDefinition(event, before if isinstance(event, TableDefined) else None, frozenset({16390})).encode()
    yield PublishedDefinition(mood, mood).encode()
    described = Column("id", 20, "bigint", -1, True, 1, True, "", "", 1)
    yield Descriptor((Table(1, "public", "t", ReplicaIdentity.INDEX, (described,), ("shop", "orders")),)).encode()
