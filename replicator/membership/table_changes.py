"""Tables that join and leave a group while it streams.

The steps are those of a start, and a replicator that dies between two of them is followed by one that begins where it
stopped:

1. a table that joins is in the ledger, to be copied, before any change of it can be published;
2. the publication is altered, when no open transaction has written to the table (``source.publication``);
3. the copy begins (``snapshot.Snapshot.run_on``), while the stream continues.

Until step 2 the assembler leaves the table's changes out of the stream (``followed_tables``), whoever published it. A
table that leaves is taken out of the publication first, then the ledger records that it left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pgsluice.replicator.definitions.tracking import track_definitions
from pgsluice.replicator.group_start import Run
from pgsluice.replicator.membership.group_publication import GroupPublication, report_partitioned
from pgsluice.replicator.membership.joining import choose_joining
from pgsluice.replicator.membership.publication_watch import PublicationWatch
from pgsluice.replicator.membership.wanted_tables import WantedTables, find_wanted, load_wishes
from pgsluice.replicator.snapshot.copy_state import CopyWishes
from pgsluice.replicator.source.publication import Publication, check_fit, find_publication, gone, pieces
from pgsluice.replicator.source.source import Source, hold_rows
from pgsluice.replicator.source.tables import SourceTable, check_publisher, check_replica_identity, matching_tables, tables_of
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.errors import LockTimeoutError, PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.wire.table import TableName, TablePattern

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """``refused`` is by oid: tables that are wanted and did not join, or could not leave."""

    wanted: WantedTables
    refused: dict[int, PgsluiceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table that the group follows: its name now, and that by which it was chosen."""

    oid: int
    schema: str
    table: str
    chosen: TableName

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"

    def is_meant_by(self, pattern: TablePattern) -> bool:
        return pattern.matches(self.schema, self.table) or pattern.matches(*self.chosen)


class MembershipChanges:
    """The changes in one session. ``role`` installs the capture of definitions, "" if there is none."""

    def __init__(self, run: Run, bucket: StateBucket, watch: PublicationWatch, role: str) -> None:
        self._run = run
        self._bucket = bucket
        self._watch = watch
        self._role = role

    async def apply(self, again: Collection[int] = ()) -> AppliedChanges:
        """Makes the group follow the tables that are wanted now and no others, and copies ``again`` those with these
        oids. A table that fails does not delay the others. Raises TransientError when source or broker do not answer."""
        source = await Source.connect(self._run.settings.source)
        try:
            return await self._apply(source, frozenset(again))
        finally:
            await source.close()

    async def followed(self) -> list[FollowedTable]:
        """Returns the followed tables by their current names."""
        source = await Source.connect(self._run.settings.source)
        try:
            members = {member.oid: member for member in self._watch.membership.members}
            return [
                FollowedTable(table.oid, table.schema, table.name, members[table.oid].chosen_name)
                for table in await tables_of(source, members)
            ]
        finally:
            await source.close()

    async def check_joining(self, pattern: TablePattern, *, without_copy: bool) -> None:
        """Raises UsageError or TerminalError when what ``pattern`` names cannot join."""
        if without_copy and self._run.copy is not None:
            raise UsageError("this group copies the tables that join it", "leave out --without-copy")
        source = await Source.connect(self._run.settings.source)
        try:
            for table in await matching_tables(source, pattern):
                if table.oid not in self._watch.membership.oids and pattern.is_name:
                    await self._check_joining(source, await self._publication(source), table, without_copy=without_copy)
        finally:
            await source.close()

    async def _check_joining(self, source: Source, publication: Publication, table: SourceTable, *, without_copy: bool) -> bool:
        """Returns whether it may join; one that only a pattern matches need not. Raises UsageError or TerminalError."""
        settings, membership = self._run.settings, self._watch.membership
        if publication.is_made_by(self._run.names):
            check_replica_identity([table], settings.publish)
            if table.oid not in publication.oids:
                await check_publisher(source, [table], creates=False)
        else:
            check_fit(publication, [table])
        if without_copy:
            return True
        joining = choose_joining(membership, [table], self._watch.wishes)
        if joining.refused:
            raise joining.refused[0][1]
        return bool(joining.tables)

    async def _apply(self, source: Source, again: frozenset[int]) -> AppliedChanges:
        run, before = self._run, self._watch.wishes
        self._watch.wishes = wishes = await load_wishes(run.settings, self._bucket, tidies=run.is_configuration_new)
        members = self._watch.membership.oids
        wanted = await find_wanted(source, run.names, wishes, self._watch.membership, run.settings.publish)
        applied = AppliedChanges(wanted)
        staying = {table.oid: table for table in wanted.tables if table.oid in members}
        await self._mend_partitions(source)
        await self._take_up([table for oid, table in staying.items() if oid in again], again)
        self._begin(again & members)
        if members - staying.keys() or again & members or self._watch.is_altered:
            applied.refused.update(await self._leave(source, members, list(staying.values())))
        await self._let_strays_go(wanted)
        new = [table for table in wanted.tables if table.oid not in members and not self._waits_for_retry(table, again)]
        joining = await self._joining(source, new, again, applied.refused)
        joined = [await self._join(source, piece, applied.refused) for piece in pieces(joining)]
        if self._role and (any(joined) or before.patterns != wishes.patterns):
            await track_definitions(source, run.names, wishes.patterns, self._role, members, run.settings.retry.source)
        return applied

    async def _mend_partitions(self, source: Source) -> None:
        """Has the roots copied again to which partitions with rows were attached. Where definitions are captured, these do it."""
        copy, watch = self._run.copy, self._watch
        mends = copy is not None and self._run.settings.recopy_altered and not self._role
        for oid, attached in list(watch.attached.items()):
            if copy is not None and mends and oid in watch.membership.oids and await hold_rows(source, attached.oids):
                await copy.copy_again({oid: attached.cause})
            await watch.settle_attached(oid)

    async def _leave(self, source: Source, members: frozenset[int], staying: list[SourceTable]) -> dict[int, PgsluiceError]:
        """Takes all members but ``staying`` out of the publication, one by one where they cannot leave together. Returns the
        error of each table that stays for now."""
        try:
            await self._bring(source, staying)
            return {}
        except (LockTimeoutError, UsageError, TerminalError) as error:
            leaving = members - {table.oid for table in staying}
            if len(leaving) < 2:
                return dict.fromkeys(leaving, error)
        refused: dict[int, PgsluiceError] = {}
        for oid in leaving:
            left = self._watch.membership.oids - {oid}
            try:
                await self._bring(source, await tables_of(source, left))
            except (LockTimeoutError, UsageError, TerminalError) as error:
                refused[oid] = error
        return refused

    def _waits_for_retry(self, table: SourceTable, again: Collection[int]) -> bool:
        record = None if self._run.copy is None else self._run.copy.progress.get(table.oid)
        return record is not None and record.phase is Phase.ERRORED and table.oid not in again

    async def _joining(
        self, source: Source, tables: Collection[SourceTable], again: frozenset[int], refused: dict[int, PgsluiceError]
    ) -> list[SourceTable]:
        """Returns the tables that may join, after the ledger has taken them up. Notes in ``refused`` why others may not."""
        if not tables:
            return []
        publication, joining = await self._publication(source), list[SourceTable]()
        for table in tables:
            try:
                if await self._check_joining(source, publication, table, without_copy=False):
                    joining.append(table)
            except (UsageError, TerminalError) as error:
                refused[table.oid] = error
        await self._take_up(joining, again, publication)
        return joining

    async def _join(self, source: Source, tables: Sequence[SourceTable], refused: dict[int, PgsluiceError]) -> bool:
        """Lets tables join: first the unlocked ones, then each of the others when it is free. Returns whether one
        joined. Notes in ``refused`` what kept a table from it, unless that is gone or altered by now."""
        left = await self._join_free(source, tables)
        joined = len(left) < len(tables)
        for table in left:
            try:
                await self._take_in(source, [table], waits=True)
                joined = True
            except (LockTimeoutError, UsageError, TerminalError) as error:
                await self._note_refused(source, table, error, refused)
        return joined

    async def _join_free(self, source: Source, tables: Sequence[SourceTable]) -> list[SourceTable]:
        """Lets tables join together, which takes as long as one alone; in halves where one blocks the others, or the
        server has too few locks. Returns the tables that did not join."""
        try:
            await self._take_in(source, tables, waits=False)
        except PgsluiceError as error:
            if len(tables) > 1:
                middle = len(tables) // 2
                return [*await self._join_free(source, tables[:middle]), *await self._join_free(source, tables[middle:])]
            if isinstance(error, TransientError) and not isinstance(error, LockTimeoutError):
                raise
            return list(tables)
        return []

    async def _take_in(self, source: Source, tables: Sequence[SourceTable], *, waits: bool) -> None:
        followed = await tables_of(source, self._watch.membership.oids)
        await self._bring(source, [*followed, *tables], only_joins=True, waits=waits)
        log.info("tables join the group", tables=",".join(table.qualified_name for table in tables))
        report_partitioned(tables)
        self._begin([table.oid for table in tables])

    async def _note_refused(
        self, source: Source, table: SourceTable, error: PgsluiceError, refused: dict[int, PgsluiceError]
    ) -> None:
        copy = self._run.copy
        if table not in await tables_of(source, [table.oid]):
            log.info("a table was dropped or altered before it joined", table=table.qualified_name)
            if copy is not None:
                await copy.drop_out(table.oid)
            return
        refused[table.oid] = error
        if copy is not None:
            await copy.note_errored(table.oid, error)

    def _begin(self, oids: Collection[int]) -> None:
        if self._run.copy is not None and oids:
            self._run.copy.begin(oids)

    async def _take_up(
        self, tables: Collection[SourceTable], again: frozenset[int], publication: Publication | None = None
    ) -> None:
        """Records tables to copy. Targets can hold rows of tables that ``publication`` has already."""
        copy, membership = self._run.copy, self._watch.membership
        if copy is None or not tables:
            return
        published = () if publication is None else publication.tables
        known = membership.known_names | {table.qualified_name for table in published}
        await copy.take_up(tables, CopyWishes(recopied=again, followed=membership.oids, known_names=known))

    async def _bring(self, source: Source, tables: list[SourceTable], *, only_joins: bool = False, waits: bool = True) -> None:
        run = self._run
        group_publication = GroupPublication(run.settings, run.names, source, self._bucket, self._watch, run.copy)
        await group_publication.bring(await self._publication(source), tables, only_joins=only_joins, waits=waits)

    async def _publication(self, source: Source) -> Publication:
        publication = await find_publication(source, self._run.names)
        if publication is None:
            raise gone(self._run.names)
        return publication

    async def _let_strays_go(self, wanted: WantedTables) -> None:
        """Removes tables from the ledger that are neither followed nor wanted."""
        copy = self._run.copy
        if copy is None:
            return
        known = self._watch.membership.oids | {table.oid for table in wanted.tables}
        strays = [record.oid for record in copy.progress.records if record.oid not in known and record.phase is not Phase.LEFT]
        if strays:
            await copy.note_left(strays)
