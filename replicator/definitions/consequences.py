"""Consequences of a definition for a group's tables: another copy, or another check of the tables.

If rows were given other values, no row in the log shows it: the table is copied again. The ledger records that before
the definition is published, so that workers learn from both together; a replicator that dies before that gets it again
from the slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, LiteralString, assert_never

from pgsluice.replicator.snapshot.copy_state import CopyCause
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import LockTimeoutError, TerminalError
from pgsluice.shared.wire.definition import (
    DefinedPartition,
    DefinitionUnknown,
    TableDefined,
    TableDefinition,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import PublishedDefinition, concerned

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy

_ACCESS_METHOD = 8
"""A reason of ``TableRewritten`` by which no value changes."""

_PATIENCE_MS = 500  # another session's lock on a partition is no reason to delay the stream

_EMPTY: LiteralString = "SELECT o.oid::bigint FROM unnest(%s::oid[]) o (oid) WHERE pg_relation_size(o.oid) = 0"
"""Oids of partitions that no longer exist are not among them."""

log = telemetry.logger(__name__)


class Consequences:
    """The consequences within one session. ``copy`` is None if nothing is copied. ``members`` are the oids that the
    group follows; ``look`` is set when it may have to follow others."""

    def __init__(
        self,
        source: PostgresSettings,
        copy: PreparedCopy | None,
        members: Callable[[], Collection[int]],
        look: asyncio.Event,
    ) -> None:
        self._source = source
        self._copy = copy
        self._members = members
        self._look = look
        self._causes: dict[int, CopyCause] = {}

    async def note(self, definition: PublishedDefinition, position: Position) -> PublishedDefinition:
        """Returns ``definition``, the change at ``position``, with what the source was asked about it. Raises
        TransientError when it does not answer."""
        if changes_names(definition):
            self._look.set()
        lsn, attached = position.commit_lsn, attached_partitions(definition)
        cause = copy_cause(definition, lsn)
        if attached:
            definition = replace(definition, empty=await self._empty(attached))
            filled = [partition for partition in attached if partition.oid not in definition.empty]
            cause = cause or (attached_cause(definition, filled, lsn) if filled else None)
        if cause is not None:
            self._causes[cause[0]] = cause[1]
        return definition

    async def flush(self) -> None:
        """Requests the noted copies; call it before the noted definitions are published. Raises TransientError when the
        broker does not answer."""
        if not self._causes:
            return
        if self._copy is not None:
            members = self._members()
            await self._copy.copy_again({oid: cause for oid, cause in self._causes.items() if oid in members})
            await self._copy.discount({oid: cause for oid, cause in self._causes.items() if oid not in members})
        self._causes = {}

    async def _empty(self, partitions: Sequence[DefinedPartition]) -> frozenset[int]:
        """Returns the oids of partitions without rows. Rows that have come since are in the stream too, so an unneeded
        copy does no harm."""
        stored = [partition.oid for partition in partitions if partition.filenode]
        others = {partition.oid for partition in partitions if not partition.filenode}
        source = await Source.connect(self._source)
        try:
            await source.rows("setting a limit", "SELECT set_config('lock_timeout', %s, false)", [str(_PATIENCE_MS)])
            found = await source.rows("looking at partitions", _EMPTY, [stored])
            return frozenset(others | {int(oid) for (oid,) in found})
        except (TerminalError, LockTimeoutError) as error:
            log.warning("whether an attached partition has rows is not known; pgsluice assumes that it has", reason=str(error))
            return frozenset(others)
        finally:
            await source.close()


def copy_cause(definition: PublishedDefinition, lsn: LSN) -> tuple[int, CopyCause] | None:
    """Returns the oid of the table whose rows have to be copied again, and why; None for none. ``lsn`` is its commit's."""
    match definition.event:
        case TableRewritten(oid=oid, schema=schema, name=name, reason=reason):
            if reason & ~_ACCESS_METHOD == 0:
                return None
            return oid, CopyCause(schema, name, lsn, "its rows were rewritten at the source")
        case TableDefined(table=table) | TablePublished(table=table):
            reason_text = _unknown_values(definition.previous, table)
            return (table.oid, CopyCause(table.schema, table.name, lsn, reason_text)) if reason_text else None
        case TableGone() | TableUnpublished() | TypeDefined() | DefinitionUnknown():
            return None
        case unreachable:
            assert_never(unreachable)


def _unknown_values(was: object, table: TableDefinition) -> str:
    """Returns why the values of older rows in a column that is sent from now on are unknown, "" if they are known."""
    # a single kind: the previous definition is a table or a type, and nothing else
    if not isinstance(was, TableDefinition) or not (was.is_published and table.is_published):
        return ""
    before = {column.number: column for column in was.columns}
    for column in table.columns:
        known = before.get(column.number)
        if column.is_published and known is not None and not known.is_published:
            return f"column {column.name} is published from now on"
        if column.is_published and known is None and column.missing_differs:
            return f"column {column.name} was added, and partitions disagree about its value in older rows"
    return ""


def attached_partitions(definition: PublishedDefinition) -> list[DefinedPartition]:
    """Returns the partitions that may have held rows before they were attached."""
    match definition.event:
        case TableDefined(tag=tag, table=table) | TablePublished(tag=tag, table=table):
            was = definition.previous
            if tag == "CREATE TABLE" or not isinstance(was, TableDefinition) or not (was.is_published and table.is_published):
                return []
            known = {partition.oid for partition in was.partitions}
            return [partition for partition in table.partitions if partition.oid not in known]
        case TableRewritten() | TableGone() | TableUnpublished() | TypeDefined() | DefinitionUnknown():
            return []
        case unreachable:
            assert_never(unreachable)


def attached_cause(definition: PublishedDefinition, filled: Sequence[DefinedPartition], lsn: LSN) -> tuple[int, CopyCause]:
    """Like ``copy_cause``, if rows of ``filled`` became rows of the table."""
    about = concerned(definition.event)
    assert about is not None
    names = ", ".join(f"{partition.schema}.{partition.name}" for partition in filled)
    return about.oid, CopyCause(about.schema, about.name, lsn, f"a partition was attached that possibly has rows: {names}")


def changes_names(definition: PublishedDefinition) -> bool:
    """Returns whether a group may have to follow other tables from now on."""
    match definition.event:
        case TableDefined(table=table) | TablePublished(table=table):
            was = definition.previous
            is_same = isinstance(was, TableDefinition) and (was.schema, was.name) == (table.schema, table.name)
            return not table.is_published or not is_same
        case TableGone() | TableUnpublished():
            return True
        case TableRewritten() | TypeDefined() | DefinitionUnknown():
            return False
        case unreachable:
            assert_never(unreachable)
