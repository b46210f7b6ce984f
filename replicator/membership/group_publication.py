"""One group's publication, brought to the configuration when a process begins; ``publication_watch`` goes on from there.

Rules are tried on the tables that a group would publish: those are asked for here as well (``load_source_tables``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsluice.replicator.membership.joining import check_breaks, choose_joining, is_copied_anew, leaving, settle_breaks
from pgsluice.replicator.membership.membership import Break, Making, Membership, find_breaks, load_membership, store_membership
from pgsluice.replicator.membership.publication_watch import PublicationWatch, dropped_members, report_breaks, report_left
from pgsluice.replicator.membership.wanted_tables import find_wanted, report_kept, report_unfit, select_group_tables
from pgsluice.replicator.snapshot.copy_state import note_membership
from pgsluice.replicator.source.catalog import describe_tables
from pgsluice.replicator.source.publication import (
    Alteration,
    Publication,
    alter_publication,
    check_extent,
    check_fit,
    create_publication,
    creation,
    find_publication,
    gone,
)
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import SourceTable, check_replica_identity
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import Ledger, now
from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.config.settings import ReplicatorSettings, SourceTablesSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy

log = telemetry.logger(__name__)


class GroupPublication:
    """``prepare`` in the first session of a process, ``bring`` when tables join or leave while the group streams.

    A later session takes the publication as it is (``PublicationWatch.verify``), so that a table made meanwhile cannot stop a
    replicator that only lost its connection. ``copy`` is None for a group that only streams.
    """

    def __init__(
        self,
        settings: ReplicatorSettings,
        names: GroupNames,
        source: Source,
        bucket: StateBucket,
        watch: PublicationWatch,
        copy: PreparedCopy | None,
    ) -> None:
        self._settings = settings
        self._names = names
        self._source = source
        self._bucket = bucket
        self._watch = watch
        self._wishes = watch.wishes
        self._copy = copy

    async def prepare(self, found: Publication | None, *, has_published: bool) -> Publication:
        """``found`` is the publication as it is; ``has_published``: the group has had a slot. Raises UsageError or TerminalError
        when rows or changes would be missing without a word, or when somebody has to alter the publication."""
        tables = await self._selected(has_published=has_published)
        publication = await self._make(tables) if found is None else found
        report_partitioned(tables)
        return await self.bring(publication, tables, has_published=has_published)

    async def bring(self, publication: Publication, tables: list[SourceTable], *, has_published: bool = True) -> Publication:
        """Has the group publish ``tables`` and no others. What is to be copied of them is in the ledger. Raises as ``prepare``,
        LockTimeoutError when a table that joins was never free."""
        membership = await load_membership(self._bucket) if has_published else None
        membership = (membership or Membership.of(publication)).settled(publication)
        dropped = await dropped_members(self._source, membership, publication, copies=self._wishes.copies)
        membership = await self._checked(membership, publication, tables, dropped)
        if has_published:
            tables = self._joining(membership, publication, tables)
        left = leaving(membership, publication, tables, dropped, now())
        publication = await self._align(membership, publication, tables, has_published)
        await self._follow(membership.adopt(publication), left if has_published else [], tables)
        return publication

    async def _make(self, tables: Sequence[SourceTable]) -> Publication:
        if self._names.chosen_publication:
            raise TerminalError(
                f"publication {self._names.publication} does not exist",
                f"let an administrator say: {creation(self._names, tables, self._settings.publish).as_string()}",
            )
        return await create_publication(self._source, self._names, tables, self._settings.publish)

    async def _selected(self, *, has_published: bool) -> list[SourceTable]:
        membership = await load_membership(self._bucket) if has_published else None
        wanted = await find_wanted(self._source, self._names, self._wishes, membership, self._settings.publish)
        if wanted.absent:
            raise wanted.absent[0]
        check_replica_identity(wanted.tables, self._settings.publish)
        report_kept(wanted.kept, wanted.tables)
        report_unfit(wanted.unfit)
        if self._copy is None or self._names.chosen_publication:
            return wanted.tables
        return [table for table in wanted.tables if self._copy.progress.get(table.oid) is not None]  # others were made just now

    async def _checked(
        self, membership: Membership, publication: Publication, tables: Sequence[SourceTable], dropped: Collection[int]
    ) -> Membership:
        """The record with what is missing, when all of that was decided by the person or by a new copy."""
        membership = self._with_wanted_options(membership, publication)
        breaks = find_breaks(membership, publication, dropped)
        ledger = await Ledger(self._bucket).load()
        membership, accepted = settle_breaks(membership.with_breaks(breaks), tables, ledger, self._wishes)
        report_breaks("a table is followed although changes may be missing at the targets", accepted)
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
        return joining.tables

    async def _align(
        self, membership: Membership, publication: Publication, tables: Sequence[SourceTable], has_published: bool
    ) -> Publication:
        """Ours as the configuration asks for; an administrator's as it is."""
        if not publication.is_made_by(self._names):
            check_fit(publication, tables, self._settings.publish)
            return publication
        check_extent(publication)
        alteration = Alteration.between(publication, tables, self._settings.publish, is_decoded=has_published)
        if not alteration:
            return publication

        async def announce(xid: str) -> None:
            if has_published:
                making = Making(xid, tuple(table.oid for table in tables))
                await store_membership(self._bucket, replace(membership, making=making))

        await alter_publication(self._source, self._names, alteration, announce, self._settings.retry.source)
        log.info(
            "publication is altered",
            publication=publication.name,
            joined=",".join(table.qualified_name for table in alteration.joining),
            left=",".join(table.qualified_name for table in alteration.leaving),
        )
        altered = await find_publication(self._source, self._names)
        if altered is None:
            raise gone(self._names)
        return altered

    async def _follow(self, membership: Membership, left: Sequence[Break], tables: Sequence[SourceTable]) -> None:
        """Remembers who is followed, for the next look, for workers and for people."""
        report_left(left)
        names = {table.qualified_name for table in tables}
        away = {entry.oid: entry for entry in (*membership.left, *left)}
        still_away = tuple(
            entry for entry in away.values() if entry.oid not in membership.oids and entry.qualified_name not in names
        )
        ledger = await Ledger(self._bucket).load()
        recopied = {oid for oid in ledger.tables if is_copied_anew(ledger, oid)}
        membership = await self._watch.begin(replace(membership, left=still_away), recopied)
        if self._copy is None:
            await note_membership(Ledger(self._bucket), membership.oids)
        else:
            await self._copy.let_go([entry.oid for entry in left])
        await store_membership(self._bucket, membership)
        oids = [table.oid for table in tables]
        described = await describe_tables(self._source, self._names, oids, self._source.major_version)
        await store_tables(self._bucket, described, self._source.encoding)


def report_partitioned(tables: Sequence[SourceTable]) -> None:
    """One line for those of them that are partitioned."""
    if partitioned := [table.qualified_name for table in tables if table.kind == "p"]:
        log.warning(
            "of these tables PostgreSQL does not publish TRUNCATE, DETACH and DROP of single partitions, nor the rows of a "
            "table that is attached",
            tables=",".join(partitioned),
        )


def load_source_tables(settings: SourceTablesSettings) -> list[Table]:
    """Raises UsageError for tables that are not there, TransientError when the source does not answer."""
    return asyncio.run(_load(settings))


async def _load(settings: SourceTablesSettings) -> list[Table]:
    source = await Source.connect(settings.source)
    try:
        facts = await source.facts()
        names = GroupNames(settings.group, settings.publication)
        selected = await select_group_tables(source, names, settings.tables, settings.schema)
        return await describe_tables(source, names, [table.oid for table in selected], facts.major_version)
    finally:
        await source.close()
