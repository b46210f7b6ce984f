"""One group's publication, over its life: brought to the configuration, compared with what was made of it, watched."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import LiteralString

from replicator.joining import Wishes, check_breaks, choose_joining, is_copied_anew, leaving, settle_breaks
from replicator.membership import Break, Making, Member, Membership, find_breaks, load_membership, store_membership
from replicator.partition_tree import partition_changes, read_partitions
from replicator.publication import (
    Alteration,
    Publication,
    alter_publication,
    check_fit,
    create_publication,
    creation,
    find_publication,
)
from replicator.snapshot.catalog import describe_tables, fold_partitions
from replicator.snapshot.resume import note_membership
from replicator.source import Source
from replicator.tables import SourceTable, check_replica_identity, select_tables, tables_of
from shared import telemetry
from shared.errors import TerminalError, TransientError
from shared.ledger import Ledger, now
from shared.names import GroupNames
from shared.published_tables import store_tables
from shared.settings import ReplicatorSettings
from shared.state import StateBucket

_START_AGAIN = "run 'pgsluice drop' and start again with an empty target"

_NEWCOMERS: LiteralString = """
    SELECT n.nspname || '.' || c.relname
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = ANY(%s) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
       AND c.oid <> ALL(%s::oid[])
     ORDER BY 1
"""

log = telemetry.logger(__name__)


async def select_group_tables(source: Source, names: GroupNames, tables: Sequence[str], schema: str) -> list[SourceTable]:
    """The tables that a group asks for: all of an administrator's publication when it names one and no tables. A partition
    whose root is among them is left out."""
    if names.chosen_publication and not tables:
        publication = await find_publication(source, names)
        if publication is None:
            raise TerminalError(f"publication {names.publication} does not exist", "make it, or remove the option publication")
        found = await tables_of(source, publication.oids)
        for table in found:
            if table.obstacle is not None:
                raise TerminalError(f"{table.qualified_name} is {table.obstacle}", "take it out of the publication")
    else:
        found = await select_tables(source, tables, schema)
    return await fold_partitions(source, found)


class GroupPublication:
    """``prepare`` in the first session of a process, ``verify`` in later ones; then ``run`` beside the session.

    A later session takes the publication as it is, so that a table made meanwhile cannot stop a replicator that only lost its
    connection.
    """

    def __init__(self, settings: ReplicatorSettings, names: GroupNames, source: Source, bucket: StateBucket) -> None:
        self._settings = settings
        self._names = names
        self._source = source
        self._bucket = bucket
        self._wishes = Wishes.of(settings)
        self._membership: Membership | None = None
        self._reported: set[str] = set()

    async def prepare(self, *, is_bound: bool, has_published: bool) -> Publication:
        """``is_bound``: the group has had its publication; ``has_published``: it has had a slot. Raises UsageError or
        TerminalError when rows or changes would be missing without a word, or when somebody has to alter the publication."""
        publication = await find_publication(self._source, self._names)
        if publication is None:
            publication = await self._make(is_bound)
        tables = await self._selected()
        lsn = await self._lsn()
        membership = await load_membership(self._bucket) if has_published else None
        if membership is None:
            membership = Membership.of(publication, lsn)
        membership = await self._checked(membership.settled(publication), publication, tables)
        if has_published:
            tables = self._joining(membership, publication, tables)
        dropped = await self._dropped(membership, publication)
        left = leaving(membership, publication.oids, tables, dropped, lsn, now())
        publication = await self._align(membership, publication, tables, has_published)
        await self._follow(membership.adopt(publication, lsn), left if has_published else [], tables)
        return publication

    async def verify(self) -> Publication:
        """Compares the catalog with the record, reports what changed, and keeps it. Raises TerminalError when changes may be
        missing, TransientError when the source does not answer."""
        publication = await find_publication(self._source, self._names)
        if publication is None:
            raise self._gone()
        if self._membership is None:
            self._membership = await load_membership(self._bucket) or Membership.of(publication, await self._lsn())
        lsn = await self._lsn()
        membership = self._membership.settled(publication)
        self._check_identity(membership, publication)
        dropped = await self._dropped(membership, publication)
        broken = membership.with_breaks(find_breaks(membership, publication, dropped))
        if broken.missing:
            await self._remember(broken)
            check_breaks(broken, self._wishes.copies)
        membership = await self._without_dropped(membership, dropped)
        self._report_names(membership, publication)
        membership = self._with_newborn(membership, publication, lsn)
        membership = await self._with_partitions(membership, lsn)
        membership = await self._with_newcomers(membership)
        self._membership = replace(membership, seen_lsn=lsn, seen_at=now())
        await self._remember(self._membership)
        return publication

    async def run(self) -> None:
        """Until it is cancelled, or raises what ``verify`` finds."""
        while True:
            await asyncio.sleep(self._settings.check_interval_s)
            await self.verify()

    async def _remember(self, membership: Membership) -> None:
        """A broker that does not answer costs no session: the next look finds what this one found."""
        try:
            await store_membership(self._bucket, membership)
        except TransientError as error:
            log.warning("what is known of the publication is not recorded now", reason=str(error))

    async def _make(self, is_bound: bool) -> Publication:
        if is_bound:
            raise self._gone()
        tables = await self._selected()
        if self._names.chosen_publication:
            raise TerminalError(
                f"publication {self._names.publication} does not exist",
                f"let an administrator say: {creation(self._names, tables, self._settings.publish).as_string()}",
            )
        return await create_publication(self._source, self._names, tables, self._settings.publish)

    async def _selected(self) -> list[SourceTable]:
        settings = self._settings
        tables = await select_group_tables(self._source, self._names, settings.tables, settings.schema)
        check_replica_identity(tables, settings.publish)
        return tables

    async def _checked(self, membership: Membership, publication: Publication, tables: Sequence[SourceTable]) -> Membership:
        """The record with what is missing, when all of that was decided by the person or by a new copy."""
        self._check_identity(membership, publication)
        membership = self._with_wanted_options(membership, publication)
        breaks = find_breaks(membership, publication, await self._dropped(membership, publication))
        ledger = await Ledger(self._bucket).load()
        membership, accepted = settle_breaks(membership.with_breaks(breaks), tables, ledger, self._wishes)
        for entry in accepted:
            log.warning(
                "a table is followed although changes may be missing at the targets",
                table=entry.qualified_name,
                since_lsn=entry.lsn,
                reason=entry.reason,
            )
        if membership.missing:
            await store_membership(self._bucket, membership)
            check_breaks(membership, self._wishes.copies)
        return membership

    def _with_wanted_options(self, membership: Membership, publication: Publication) -> Membership:
        """Operations and options that the configuration asks for now, and did not before, are nobody's offence."""
        wanted = set(self._settings.publish)
        if set(membership.operations) != wanted:
            log.warning(
                "other operations are published from now on; what was not published before is missing at the targets",
                before=",".join(membership.operations),
                now=",".join(self._settings.publish),
            )
        is_asked_for = set(membership.operations) != wanted == set(publication.operations)
        if is_asked_for or (publication.via_partition_root and not membership.via_partition_root):
            return replace(membership, xmin=publication.xmin)
        return membership

    def _joining(self, membership: Membership, publication: Publication, tables: Sequence[SourceTable]) -> list[SourceTable]:
        covers = publication.covers_more and not publication.is_made_by(self._names)
        joining = choose_joining(membership, tables, self._wishes, covers)
        for table in joining.accepted:
            log.warning("a table joins without a copy; what it held before is missing at the targets", table=table.qualified_name)
        self._report_newcomers([table.qualified_name for table in joining.left_out])
        return joining.tables

    async def _align(
        self, membership: Membership, publication: Publication, tables: Sequence[SourceTable], has_published: bool
    ) -> Publication:
        """Ours as the configuration asks for; an administrator's as it is."""
        if not publication.is_made_by(self._names):
            check_fit(publication, tables, self._settings.publish)
            return publication
        alteration = Alteration.between(publication, tables, self._settings.publish)
        if not alteration:
            return publication
        locked = list(tables) if alteration.operations is not None else alteration.joining

        async def announce(xid: str) -> None:
            if has_published:
                making = Making(xid, tuple(table.oid for table in tables))
                await store_membership(self._bucket, replace(membership, making=making))

        await alter_publication(self._source, self._names, alteration, locked if has_published else [], announce)
        log.info(
            "publication is altered",
            publication=publication.name,
            joined=",".join(table.qualified_name for table in alteration.joining),
            left=",".join(table.qualified_name for table in alteration.leaving),
        )
        altered = await find_publication(self._source, self._names)
        if altered is None:
            raise self._gone()
        return altered

    async def _follow(self, membership: Membership, left: Sequence[Break], tables: Sequence[SourceTable]) -> None:
        """Remembers who is followed, for the next look, for workers and for people."""
        self._report_left(left)
        names = {table.qualified_name for table in tables}
        away = {entry.oid: entry for entry in (*membership.left, *left)}
        still_away = tuple(
            entry for entry in away.values() if entry.oid not in membership.oids and entry.qualified_name not in names
        )
        ledger = await Ledger(self._bucket).load()
        anew = {oid for oid in ledger.tables if is_copied_anew(ledger, oid)}
        membership = await self._with_partitions(replace(membership, left=still_away), membership.seen_lsn, anew)
        membership = await self._with_newcomers(membership)
        if partitioned := [member.qualified_name for member in membership.members if member.partitions is not None]:
            log.warning(
                "of these tables PostgreSQL does not publish TRUNCATE, DETACH and DROP of single partitions, nor the rows of a "
                "table that is attached",
                tables=",".join(partitioned),
            )
        await note_membership(Ledger(self._bucket), membership.oids)
        await store_membership(self._bucket, membership)
        oids = [table.oid for table in tables]
        described = await describe_tables(self._source, self._names, oids, self._source.major_version)
        await store_tables(self._bucket, described, self._source.encoding)
        self._membership = membership

    def _report_left(self, left: Sequence[Break]) -> None:
        for entry in left:
            log.warning(
                "a table is not replicated any more; its changes from now on are missing at the targets",
                table=entry.qualified_name,
                since_lsn=entry.lsn,
                reason=entry.reason,
            )

    async def _dropped(self, membership: Membership, publication: Publication) -> set[int]:
        """Members that do not exist any more."""
        unpublished = membership.oids - publication.oids
        if not unpublished:
            return set()
        return set(unpublished) - {table.oid for table in await tables_of(self._source, unpublished)}

    async def _without_dropped(self, membership: Membership, dropped: set[int]) -> Membership:
        gone = [member for member in membership.members if member.oid in dropped]
        left = []
        for member in gone:
            reason = "it was dropped at the source"
            if await self._exists(member):
                reason = "it was dropped and made again at the source; the new one is not replicated before the next start"
            left.append(Break(member.oid, member.schema, member.table, membership.seen_lsn, membership.seen_at, reason))
        self._report_left(left)
        members = tuple(member for member in membership.members if member.oid not in dropped)
        return replace(membership, members=members, left=(*membership.left, *left))

    async def _exists(self, member: Member) -> bool:
        query: LiteralString = (
            "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
        )
        return bool(await self._source.rows("looking up a table", query, [member.schema, member.table]))

    def _report_names(self, membership: Membership, publication: Publication) -> None:
        known = {member.oid: member.qualified_name for member in membership.members}
        for table in publication.tables:
            before = known.get(table.oid)
            if before is None and not publication.covers_more:
                self._report_once("somebody added a table to the publication", table=table.qualified_name)
            elif before is not None and before != table.qualified_name:
                self._report_once("a table was renamed at the source", table=before, now=table.qualified_name)

    def _with_newborn(self, membership: Membership, publication: Publication, lsn: str) -> Membership:
        """Tables that a publication of whole schemas took in when they were made: nothing of them is missing."""
        if not publication.covers_more:
            return membership
        for table in publication.tables:
            if table.oid not in membership.oids:
                log.info("a new table is replicated", table=table.qualified_name)
        return membership.adopt(publication, lsn)

    async def _with_partitions(self, membership: Membership, lsn: str, copied_anew: Collection[int] = ()) -> Membership:
        """With the trees as they are, and what changed in them; that does not matter to tables that are copied anew."""
        roots = [member.oid for member in membership.members if member.kind == "p"]
        trees = await read_partitions(self._source, roots)
        found, members = [], []
        for member in membership.members:
            before, after = member.partitions, trees.get(member.oid)
            is_told = before is not None and after is not None and member.oid not in copied_anew
            for change in partition_changes(before or (), after or ()) if is_told else ():
                log.warning(
                    "partitions changed; to bring the table up to date copy it anew (--recopy)",
                    table=member.qualified_name,
                    change=change,
                )
                found.append(Break(member.oid, member.schema, member.table, lsn, now(), change))
            members.append(member if after is None else replace(member, partitions=after))
        return replace(membership, members=tuple(members), partition_changes=(*membership.partition_changes, *found))

    async def _with_newcomers(self, membership: Membership) -> Membership:
        schemas = [pattern.schema for pattern in self._wishes.whole]
        if not schemas:
            return replace(membership, unpublished=())
        rows = await self._source.rows("looking for new tables", _NEWCOMERS, [schemas, list(membership.oids)])
        names = tuple(name for (name,) in rows)
        self._report_newcomers(names)
        return replace(membership, unpublished=names)

    def _report_newcomers(self, names: Sequence[str]) -> None:
        if names:
            remedy = "the next start takes and copies them" if self._wishes.copies else "name them in without-copy at a start"
            self._report_once(
                "tables of a schema that is replicated whole are not replicated", tables=",".join(names), remedy=remedy
            )

    def _report_once(self, event: str, **fields: str) -> None:
        if repr((event, fields)) not in self._reported:
            self._reported.add(repr((event, fields)))
            log.warning(event, **fields)

    async def _lsn(self) -> str:
        [(lsn,)] = await self._source.rows("asking for the current LSN", "SELECT pg_current_wal_lsn()::text")
        return str(lsn)

    def _check_identity(self, membership: Membership, publication: Publication) -> None:
        if membership.name != publication.name:
            raise TerminalError(
                f"this group follows publication {membership.name}, not {publication.name}",
                f"give the same publication as before; for another one {_START_AGAIN}",
            )
        if membership.oid != publication.oid:
            raise TerminalError(
                f"publication {publication.name} was dropped and made again: changes in between were not published", _START_AGAIN
            )

    def _gone(self) -> TerminalError:
        return TerminalError(f"publication {self._names.publication} was dropped while the slot needs it", _START_AGAIN)
