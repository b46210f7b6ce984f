"""Definitions of the tables of a replication stream, at every place in it.

If definitions are captured the source sends them in the stream itself, at the command's place (``take``), and they are
kept for sessions that go back. For a table without a message, or with one that contradicts its Relation message, the
catalog is read (``replicator.source.relation_catalog``), whose facts are valid if they are older than the change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from pgsluice.replicator.definitions.consequences import Consequences
from pgsluice.replicator.definitions.history import History, Version
from pgsluice.replicator.definitions.store import HistoryStore
from pgsluice.replicator.source.copy_data import WantedMessages
from pgsluice.replicator.source.relation_catalog import RelationCatalog
from pgsluice.shared import telemetry
from pgsluice.shared.broker.definition_log import DefinitionLog, LoggedDefinition, shortened
from pgsluice.shared.broker.published_tables import SeenTables
from pgsluice.shared.definitions.wording import in_words
from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.encoder import encode_message
from pgsluice.shared.pgoutput.messages import LogicalMessage, Relation, RelationColumn
from pgsluice.shared.wire.definition import (
    MADE_AS_PARTITION,
    MOST_BYTES,
    SIGNED_BYTES,
    DefinedColumn,
    DefinitionEvent,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
    believed,
)
from pgsluice.shared.wire.message import DDL_PREFIX
from pgsluice.shared.wire.position import LSN, Position, format_time
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition, alters, concerned
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

FORGERY_LOG_INTERVAL_S = 60.0
TOKEN_INTERVAL_S = 1.0

log = telemetry.logger(__name__)


class Taken(NamedTuple):
    """A message that counts as a change. ``frame`` is the definition to publish, None for a forged message. ``supersedes``: it
    holds all that the definition right before it holds, and no row comes between the two."""

    frame: bytes | None
    supersedes: bool = False


@dataclass(frozen=True, slots=True)
class _Made:
    """A definition that adds partitions made by CREATE TABLE to a table, and nothing else. ``previous`` is the definition before
    the first of an uninterrupted run of these."""

    oid: int
    position: Position
    previous: TableDefinition


class SourceDefinitions:
    """The definitions of one session. ``prefix`` is the prefix of the group's logical messages, ``token`` the secret
    that signs them ("" while nothing is captured), and ``read_token`` reads the secret that the source has now.
    ``published`` holds what was published before. The caller calls ``flush`` before it publishes anything that depends
    on what was taken."""

    def __init__(
        self,
        catalog: RelationCatalog,
        store: HistoryStore,
        histories: Mapping[int, History],
        published: DefinitionLog,
        prefix: str,
        token: str,
        consequences: Consequences,
        seen: SeenTables,
        read_token: Callable[[], Awaitable[str]],
    ) -> None:
        self._consequences = consequences
        self._seen = seen
        self._read_token = read_token
        self._token_read_at = time.monotonic()
        self._token_before = ""
        """The secret of messages that were emitted before the capture was installed again."""
        self._catalog = catalog
        self._store = store
        self._histories = dict(histories)
        self._prefix = prefix
        self._forgery_logged_at = -math.inf
        self._token = token
        self._changed: set[int] = set()
        self._log = published
        self._has_news = False
        self._made: _Made | None = None
        """The definition that was taken last, if it only adds partitions."""

    @property
    def wanted(self) -> WantedMessages:
        """The logical messages of the stream that ``take`` wants."""
        return WantedMessages(self._prefix.encode(), MOST_BYTES, SIGNED_BYTES)

    @property
    def are_captured(self) -> bool:
        """Returns whether the source sends them."""
        return bool(self._token)

    async def describe(self, relation: Relation, position: Position, xid: int) -> Table:
        """Completes ``relation`` with the known facts about its table, for the change at ``position`` of the
        transaction ``xid``."""
        table = await self._described(relation, position, xid)
        self._seen.note(table)
        return table

    async def _described(self, relation: Relation, position: Position, xid: int) -> Table:
        known = self._known(relation.oid, position) if self._token else None
        # a single kind: completes a row's table, and nothing else has columns
        if isinstance(known, TableDefinition):
            table = _completed(relation, known)
            if table is not None:
                return table
            self._note_missed(relation, position)
        return await self._catalog.describe(relation, xid, position.commit_lsn)

    @property
    def counts_from(self) -> LSN | None:
        """Returns the LSN from which on ``complete`` returns a table; None when it has none."""
        return self._catalog.counts_from

    async def complete(self, xid: int, commit_lsn: LSN) -> Sequence[Table]:
        """Returns the tables of which more is known from the transaction ``xid`` on, which commits at ``commit_lsn``. To be
        called at its Begin."""
        tables = await self._catalog.complete(xid, commit_lsn)
        for table in tables:
            self._seen.note(table)
        return tables

    async def take(self, frame: bytes, position: Position, committed_at: int) -> Taken | None:
        """Returns what to publish for the logical message ``frame``, which would be the change at ``position`` of a transaction
        that was committed at ``committed_at``, in microseconds since 2000-01-01 UTC. Returns None for a message of another
        program. Raises TransientError."""
        message = decode_message(frame)
        assert isinstance(message, LogicalMessage)
        if not message.transactional or message.prefix != self._prefix:
            return None
        event = await self._believed(message.content, position)
        if event is None:
            return Taken(None)
        event = self._whole(event, position)
        published, before = PublishedDefinition(event, self._noted(event, position)), self._made
        self._made = _made(published, position)
        supersedes = self._made is not None and before is not None and _adjoin(before, self._made)
        if self._made is not None and before is not None and supersedes:
            self._made = replace(self._made, previous=before.previous)
            published = replace(published, previous=before.previous)
            self._histories[before.oid].forget(before.position)
            self._log.forget(before.position)
        definition = await self._consequences.note(published, position)
        self._note(definition, position, committed_at)
        # the others contain no columns
        if isinstance(event, TableDefined | TablePublished):
            self._seen.note(_table_of(event.table))
        return Taken(encode_message(LogicalMessage(True, message.lsn, DDL_PREFIX, definition.encode())), supersedes)

    async def flush(self, confirmed: LSN) -> None:
        """Makes durable what is news. Nothing that commits before ``confirmed`` comes again. Raises TransientError."""
        await self._consequences.flush()
        await self._seen.flush()
        if self._has_news:
            await self._store.write_log(self._log)
            self._has_news = False
        if not self._changed:
            return
        news = {oid: self._histories[oid] for oid in self._changed}
        for history in news.values():
            history.forget_before(confirmed)
        await self._store.write(news)
        self._changed -= news.keys()

    def _note(self, definition: PublishedDefinition, position: Position, committed_at: int) -> None:
        if not alters(definition):
            return
        event = definition.event
        about = concerned(event)
        oid, name = (0, "") if about is None else (about.oid, f"{about.schema}.{about.name}")
        changes = shortened(in_words(definition))
        self._has_news |= self._log.note(LoggedDefinition(position, format_time(committed_at), event.tag, oid, name, changes))

    def _note_missed(self, relation: Relation, position: Position) -> None:
        if self._log.missed.add(position):
            self._has_news = True
            log.warning(
                "a table was altered and no trigger reported it; the catalog is read",
                table=f"{relation.schema}.{relation.name}",
                so_far=self._log.missed.count,
                remedy="check that its event triggers are enabled; migrations can report changes with 'pgsluice ddl note'",
            )

    async def _believed(self, content: bytes, position: Position) -> DefinitionEvent | None:
        """Returns None for a message that the capture function did not emit: every role may emit a message. While
        nothing is captured no message can be verified."""
        signed = content if len(content) <= MOST_BYTES else content[:SIGNED_BYTES]
        event = believed(signed, self._token)
        if event is None and self._token and await self._takes_new_token():
            event = believed(signed, self._token)
        event = event or believed(signed, self._token_before)
        if event is None and self._token:
            self._has_news |= self._log.forged.add(position)
            self._log_forgery()
        return event

    async def _takes_new_token(self) -> bool:
        """Reads the secret again, at most once in TOKEN_INTERVAL_S: a role that forges one message may forge millions. Returns
        whether the capture was installed again since. Raises TransientError."""
        now = time.monotonic()
        if now - self._token_read_at < TOKEN_INTERVAL_S:
            return False
        self._token_read_at = now
        token = await self._read_token()
        if token in ("", self._token, self._token_before):
            return False
        self._token, self._token_before = token, self._token
        log.info("the capture of schema changes was installed again; the replicator uses its new secret")
        return True

    def _log_forgery(self) -> None:
        """Logs forged messages, once in a while: a role that forges one may forge millions."""
        now = time.monotonic()
        if now - self._forgery_logged_at >= FORGERY_LOG_INTERVAL_S:
            self._forgery_logged_at = now
            log.warning(
                "other programs emitted unsigned DDL messages; the replicator ignores them",
                so_far=self._log.forged.count,
                remedy="let other roles emit none: see the finding of 'pgsluice check' about pg_logical_emit_message",
            )

    def _whole(self, event: DefinitionEvent, position: Position) -> DefinitionEvent:
        """Returns ``event`` with all partitions of its table."""
        # a single kind: no other event lists only a part of the partitions
        if not isinstance(event, TableDefined):
            return event
        known = self._known(event.table.oid, position)
        return replace(event, table=event.table.after(known if isinstance(known, TableDefinition) else None))

    def _noted(self, event: DefinitionEvent, position: Position) -> Defined | None:
        """Notes ``event``, whose definition applies after ``position``; returns the previous definition."""
        match event:
            case TableDefined(table=defined) | TablePublished(table=defined):
                return self._replaced(defined, position)
            case TypeDefined() as defined:
                return self._replaced(defined, position)
            case TableGone(oid=oid) | TableUnpublished(oid=oid) | TableRewritten(oid=oid):
                return self._known(oid, position)
            case DefinitionUnknown():
                return None
            case unreachable:
                assert_never(unreachable)

    def _replaced(self, defined: Defined, position: Position) -> Defined | None:
        history = self._histories.setdefault(defined.oid, History())
        known = history.before(position)
        if history.note(Version(position, defined)):
            self._changed.add(defined.oid)
        return known

    def _known(self, oid: int, position: Position) -> Defined | None:
        return self._histories.get(oid, History()).before(position)


def _table_of(known: TableDefinition) -> Table:
    """Returns the table as the Relation of its next rows describes it."""
    is_full = known.replica_identity is ReplicaIdentity.FULL
    columns = tuple(
        _column(RelationColumn(is_full or each.number in known.identity_columns, each.name, each.type_oid, each.typmod), each)
        for each in known.columns
        if each.is_published
    )
    return Table(known.oid, known.schema, known.name, known.replica_identity, columns)


def _made(definition: PublishedDefinition, position: Position) -> _Made | None:
    event, was = definition.event, definition.previous
    # a single kind: tables have partitions, and nothing else has
    if not (isinstance(event, TableDefined) and isinstance(was, TableDefinition)) or event.tag != MADE_AS_PARTITION:
        return None
    now = event.table
    if replace(now, partitions=()) != replace(was, partitions=()) or len(now.partitions) <= len(was.partitions):
        return None
    return _Made(now.oid, position, was)


def _adjoin(before: _Made, made: _Made) -> bool:
    """Returns whether they are of one table and transaction, and ``made`` comes right after ``before``."""
    earlier, later = before.position, made.position
    return before.oid == made.oid and earlier.commit_lsn == later.commit_lsn and earlier.ordinal + 1 == later.ordinal


def _completed(relation: Relation, known: TableDefinition) -> Table | None:
    """Returns ``relation`` with what is known of its table; None when they disagree."""
    named = (relation.schema, relation.name, relation.replica_identity)
    columns = {column.name: column for column in known.columns}
    if named != (known.schema, known.name, known.replica_identity) or any(
        column.name not in columns or not _is_same(column, columns[column.name], known) for column in relation.columns
    ):
        return None
    described = tuple(_column(column, columns[column.name]) for column in relation.columns)
    return Table(relation.oid, relation.schema, relation.name, relation.replica_identity, described)


def _is_same(column: RelationColumn, known: DefinedColumn, table: TableDefinition) -> bool:
    is_key = table.replica_identity is ReplicaIdentity.FULL or known.number in table.identity_columns
    return (column.type_oid, column.typmod, column.identity_key) == (known.type_oid, known.typmod, is_key)


def _column(column: RelationColumn, known: DefinedColumn) -> Column:
    return Column(
        name=column.name,
        type_oid=column.type_oid,
        type_name=known.type_name,
        typmod=column.typmod,
        not_null=known.not_null,
        primary_key_position=known.primary_key_position,
        identity_key=column.identity_key,
        identity=known.identity,
        generated=known.generated,
        number=known.number,
        collation=known.collation,
    )
