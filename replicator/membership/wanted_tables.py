"""Determines the tables that a group must follow, by its configuration, by commands, and by the tables' identity.

A table that was renamed, or put into another schema, is known by its OID: it stays although nothing asks for its new
name, unless another table has the name by which it was chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pgsluice.replicator.membership.joining import Wishes
from pgsluice.replicator.membership.membership import Member, Membership, load_membership
from pgsluice.replicator.source.catalog import fold_partitions
from pgsluice.replicator.source.publication import Publication, check_fit, find_publication
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import (
    SourceTable,
    check_replica_identity,
    matching_tables,
    select_tables,
    tables_of,
    wanted_patterns,
)
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.table_selection import SELECTION, load_selection
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TableName, TablePattern

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class WantedTables:
    """``kept`` are the members of ``tables`` that no name chooses any more, only their OID. ``absent`` has an error for
    each entry of the configuration that chooses no table, ``absent_added`` one for each that was added by command.
    ``unfit`` are wanted tables that cannot join, with the reason. ``operations`` are the published operations of the
    tables."""

    tables: list[SourceTable]
    kept: list[Member]
    absent: list[UsageError]
    absent_added: list[UsageError]
    unfit: list[tuple[SourceTable, PgsluiceError]]
    operations: tuple[str, ...]


async def select_group_tables(source: Source, names: GroupNames, tables: Sequence[str], schema: str) -> list[SourceTable]:
    """Returns the tables that a configuration asks for: all of an administrator's publication when it names one and no
    tables. A partition whose root is among them is left out."""
    if names.chosen_publication and not tables:
        publication = await find_publication(source, names)
        return await fold_partitions(source, await _tables_of_publication(source, names, publication))
    return await fold_partitions(source, await select_tables(source, tables, schema))


async def load_wishes(settings: ReplicatorSettings, bucket: StateBucket, *, tidies: bool = False) -> Wishes:
    """Loads what the configuration and commands ask for together. ``tidies``: removes commands that the configuration
    has caught up with."""
    selection = await load_selection(bucket)
    if tidies:
        patterns = wanted_patterns(settings.tables, settings.schema, settings.publication)
        tidied = (await SELECTION.change(bucket, lambda found: found.caught_up(patterns))).value
        left = {*tidied.added, *tidied.removed}
        if texts := [text for text in (*selection.added, *selection.removed) if text not in left]:
            log.info("the configuration now contains the tables that were added and removed by command", tables=",".join(texts))
        selection = tidied
    return Wishes.of(settings, selection)


async def select_wanted(
    settings: ReplicatorSettings, names: GroupNames, source: Source, bucket: StateBucket
) -> list[SourceTable]:
    """Returns the tables for a start. Raises UsageError when the configuration asks for missing ones."""
    wishes = Wishes.of(settings, await load_selection(bucket))
    membership = await load_membership(bucket) if await bucket.exists() else None
    wanted = await find_wanted(source, names, wishes, membership, settings.publish)
    if wanted.absent:
        raise wanted.absent[0]
    for error in wanted.absent_added:
        log.warning("a table that was added by command is not there", reason=error.fact, remedy="pgsluice tables remove")
    return wanted.tables


def report_kept(kept: Sequence[Member], tables: Collection[SourceTable]) -> None:
    """Logs one line for each."""
    names = {table.oid: table.qualified_name for table in tables}
    for member in kept:
        log.warning(
            "a table was renamed at the source, and tables does not ask for its new name; it is kept, by its OID",
            was=".".join(member.chosen_name),
            now=names[member.oid],
            remedy="name it so in tables, or run 'pgsluice tables remove'",
        )


def report_unfit(unfit: Sequence[tuple[SourceTable, PgsluiceError]]) -> None:
    """Logs one line for each."""
    for table, error in unfit:
        log.warning("a table that is asked for does not join", table=table.qualified_name, reason=error.fact, remedy=error.remedy)


async def find_wanted(
    source: Source, names: GroupNames, wishes: Wishes, membership: Membership | None, operations: Collection[str]
) -> WantedTables:
    """``membership`` exists in a group that has streamed. ``operations`` are the configured ones; an administrator's
    publication takes precedence, and once the group streams it can only have tables of that publication."""
    async with source.one_moment("looking up the tables"):  # or one that is renamed meanwhile could be missed
        return await _find_wanted(source, names, wishes, membership, operations)


async def _find_wanted(
    source: Source, names: GroupNames, wishes: Wishes, membership: Membership | None, operations: Collection[str]
) -> WantedTables:
    publication = await find_publication(source, names)
    is_administrators = publication is not None and not publication.is_made_by(names)
    if publication is not None and is_administrators:
        operations = publication.operations
    renamed = [] if membership is None else await _renamed(source, membership)
    found = _FoundTables({}, {member.chosen_name for member, _ in renamed})
    if not wishes.configured:
        found.take(await _tables_of_publication(source, names, publication))
    absent = [error for pattern in wishes.configured if (error := await found.look(source, pattern, wishes)) is not None]
    absent_added = [error for pattern in wishes.added if (error := await found.look(source, pattern, wishes)) is not None]
    tables = {oid: table for oid, table in found.tables.items() if not wishes.is_removed(table.schema, table.name)}
    kept = [(member, table) for member, table in renamed if _is_kept(member, table, wishes, tables)]
    tables |= {table.oid: table for _, table in kept}
    unfit = [] if membership is None else _unfit(tables.values(), wishes, membership, operations, names.publication)
    left_out = {table.oid for table, _ in unfit}
    fit = [table for table in tables.values() if table.oid not in left_out]
    folded = await fold_partitions(source, sorted(fit, key=lambda table: (table.schema, table.name)))
    if publication is not None and is_administrators and membership is not None:
        unpublished = _unpublished(folded, publication)
        unfit += unpublished
        lacking = {table.oid for table, _ in unpublished}
        folded = [table for table in folded if table.oid not in lacking]
    return WantedTables(folded, [member for member, _ in kept], absent, absent_added, unfit, tuple(operations))


@dataclass(slots=True)
class _FoundTables:
    """The tables found so far. ``former_names`` are the earlier names of renamed tables."""

    tables: dict[int, SourceTable]
    former_names: Collection[TableName]

    def take(self, tables: Collection[SourceTable]) -> None:
        self.tables |= {table.oid: table for table in tables}

    async def look(self, source: Source, pattern: TablePattern, wishes: Wishes) -> UsageError | None:
        """Returns the complaint that ``pattern`` finds nothing, unless it is about a table that was renamed or removed."""
        assert pattern.schema is not None
        if pattern.is_name and wishes.is_removed(pattern.schema.name, pattern.name.name):
            return None
        try:
            self.take(await matching_tables(source, pattern))
        except UsageError as error:
            return None if any(pattern.matches(*name) for name in self.former_names) else error
        return None


async def _renamed(source: Source, membership: Membership) -> list[tuple[Member, SourceTable]]:
    """Returns members that can be followed and have another name than that by which they were chosen."""
    there = {table.oid: table for table in await tables_of(source, membership.oids)}
    pairs = [(member, there[member.oid]) for member in membership.members if member.oid in there]
    return [(member, table) for member, table in pairs if not table.obstacle and member.chosen_name != (table.schema, table.name)]


def _is_kept(member: Member, table: SourceTable, wishes: Wishes, selected: Mapping[int, SourceTable]) -> bool:
    """Returns whether only the member's OID selects it: nothing asks for its new name, and no table has the former one."""
    chosen, taken = member.chosen_name, {(other.schema, other.name) for other in selected.values()}
    if table.oid in selected or chosen in taken or wishes.is_removed(table.schema, table.name):
        return False
    return wishes.wants(*chosen)


def _unfit(
    tables: Collection[SourceTable], wishes: Wishes, membership: Membership, operations: Collection[str], publication: str
) -> list[tuple[SourceTable, PgsluiceError]]:
    """Returns new tables that no name selects, and whose updates would fail once they are published."""
    unfit: list[tuple[SourceTable, PgsluiceError]] = []
    for table in tables:
        if table.oid in membership.oids or wishes.names(table):
            continue
        try:
            check_replica_identity([table], operations, publication)
        except TerminalError as error:
            unfit.append((table, error))
    return unfit


def _unpublished(tables: Collection[SourceTable], publication: Publication) -> list[tuple[SourceTable, PgsluiceError]]:
    """Returns the wanted tables that an administrator's publication lacks, with the reason."""
    lacking: list[tuple[SourceTable, PgsluiceError]] = []
    for table in tables:
        try:
            check_fit(publication, [table])
        except TerminalError as error:
            lacking.append((table, error))
    return lacking


async def _tables_of_publication(source: Source, names: GroupNames, publication: Publication | None) -> list[SourceTable]:
    """Returns the tables that a group may follow without naming them. Raises TerminalError when there is no publication."""
    if publication is None:
        raise TerminalError(f"publication {names.publication} does not exist", "make it, or remove the option publication")
    return [table for table in await tables_of(source, publication.oids) if table.reason_to_leave_out is None]
