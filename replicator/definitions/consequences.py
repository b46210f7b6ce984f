"""What follows for a group's tables from a definition that its source told: a copy anew, or a look at what there is.

Where rows were given other values, no row in the log tells: the table is copied again. The ledger says so before the definition
is published, so that workers learn from both together; and a replicator that dies before that is told again by the slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, LiteralString, assert_never

from pgsluice.replicator.snapshot.copy_state import CopyCause
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import TerminalError
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
from pgsluice.shared.wire.published_definition import PublishedDefinition

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy

_ACCESS_METHOD = 8
"""A reason of ``TableRewritten`` by which no value changes."""

_PATIENCE_MS = 500  # somebody's lock on a partition is no reason to hold up the stream

_FILLED: LiteralString = "SELECT coalesce(bool_or(pg_relation_size(o.oid) > 0), false) FROM unnest(%s::oid[]) o (oid)"

log = telemetry.logger(__name__)


class Consequences:
    """Of one session. ``copy`` is None where nothing is to be copied for what is told. ``members`` are the oids that the
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
        self._attached: dict[int, tuple[CopyCause, list[DefinedPartition]]] = {}

    def note(self, definition: PublishedDefinition, position: Position) -> None:
        """``definition`` is the change at ``position``."""
        if changes_names(definition):
            self._look.set()
        cause = copy_cause(definition, position.commit_lsn)
        if cause is not None:
            self._causes[cause[0]] = cause[1]
        if (found := attached_partitions(definition, position.commit_lsn)) is not None:
            oid, attached, partitions = found
            self._attached[oid] = attached, partitions

    async def flush(self) -> None:
        """To be called before what was noted is published. Raises TransientError when broker or source do not answer."""
        if not self._causes and not self._attached:
            return
        causes, attached = self._causes, self._attached
        if self._copy is not None:
            members = self._members()
            needed = {oid: cause for oid, cause in causes.items() if oid in members}
            for oid, (cause, partitions) in attached.items():
                if oid in members and oid not in needed and await self._are_filled(partitions):
                    needed[oid] = cause
            await self._copy.copy_again(needed)
        self._causes, self._attached = {}, {}

    async def _are_filled(self, partitions: Sequence[DefinedPartition]) -> bool:
        """Whether one of them may hold rows. What has come by now comes with the stream too, so a copy too many does no harm."""
        source = await Source.connect(self._source)
        try:
            await source.rows("setting a limit", "SELECT set_config('lock_timeout', %s, false)", [str(_PATIENCE_MS)])
            [(filled,)] = await source.rows("looking at partitions", _FILLED, [[partition.oid for partition in partitions]])
            return bool(filled)
        except TerminalError as error:
            log.warning("whether an attached partition has rows is not known; its table is copied again", reason=str(error))
            return True
        finally:
            await source.close()


def copy_cause(definition: PublishedDefinition, lsn: LSN) -> tuple[int, CopyCause] | None:
    """The oid of the table whose rows have to be copied again, and why; None for none. ``lsn`` is its commit's."""
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
    """Why it is not known what older rows have in a column that is sent from now on, "" when it is."""
    if not isinstance(was, TableDefinition) or not (was.is_published and table.is_published):
        return ""
    before = {column.number: column for column in was.columns}
    for column in table.columns:
        known = before.get(column.number)
        if column.is_published and known is not None and not known.is_published:
            return f"column {column.name} is published from now on"
        if column.is_published and known is None and column.missing_differs:
            return f"column {column.name} was added, and partitions disagree about what older rows have in it"
    return ""


def attached_partitions(definition: PublishedDefinition, lsn: LSN) -> tuple[int, CopyCause, list[DefinedPartition]] | None:
    """The oid of the table that got partitions which may have held rows before, why it may have to be copied, and these; None
    when there are none."""
    match definition.event:
        case TableDefined(tag=tag, table=table) | TablePublished(tag=tag, table=table):
            was = definition.previous
            if tag == "CREATE TABLE" or not isinstance(was, TableDefinition) or not (was.is_published and table.is_published):
                return None
            known = {partition.oid for partition in was.partitions}
            new = [partition for partition in table.partitions if partition.oid not in known and partition.filenode]
            names = ", ".join(f"{partition.schema}.{partition.name}" for partition in new)
            cause = CopyCause(table.schema, table.name, lsn, f"a partition that may hold rows was attached: {names}")
            return (table.oid, cause, new) if new else None
        case TableRewritten() | TableGone() | TableUnpublished() | TypeDefined() | DefinitionUnknown():
            return None
        case unreachable:
            assert_never(unreachable)


def changes_names(definition: PublishedDefinition) -> bool:
    """Whether a group may have to follow other tables from now on."""
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
