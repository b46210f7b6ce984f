"""One group's publication, brought to the configuration when a process begins; ``publication_watch`` continues from there.

Rules are tried on the tables that a group would publish, which are read here as well (``load_source_tables``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsluice.replicator.membership.joining import check_breaks, choose_joining, is_copied_anew, leaving, settle_breaks
from pgsluice.replicator.membership.membership import Break, Making, Membership, find_breaks, load_membership, store_membership
from pgsluice.replicator.membership.publication_watch import (
    PublicationWatch,
    are_mended,
    members_away,
    report_breaks,
    report_left,
)
from pgsluice.replicator.membership.wanted_tables import find_wanted, report_kept, report_unfit, select_group_tables
from pgsluice.replicator.snapshot.copy_state import CopyCause, note_membership
from pgsluice.replicator.source.alteration import PublicationAlteration, alter_publication
from pgsluice.replicator.source.catalog import describe_tables
from pgsluice.replicator.source.publication import (
    Publication,
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
from pgsluice.shared.wire.position import parse_lsn
from pgsluice.shared.wire.table import Table

if TYPE_CHECKING:
    from pgsluice.replicator.snapshot.prepared_copy import PreparedCopy

log = telemetry.logger(__name__)


class GroupPublication:
    """``prepare`` in the first session of a process, ``bring`` when tables join or leave while the group streams.

    A later session takes the publication as it is (``PublicationWatch.verify``), so that a table created meanwhile
    cannot stop a replicator that only lost its connection. ``copy`` is None for a group that only streams.
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
        """``found`` is the publication as it is; ``has_published``: the group has had a slot. Raises UsageError or
        TerminalError when rows or changes would be missing silently, or when an administrator has to alter the
        publication."""
        tables = await self._selected(has_published=has_published)
        publication = await self._make(tables) if found is None else found
        report_partitioned(tables)
        return await self.bring(publication, tables, has_published=has_published)

    async def bring(
        self,
        publication: Publication,
        tables: list[SourceTable],
        *,
        has_published: bool = True,
        only_joins: bool = False,
        waits: bool = True,
    ) -> Publication:
        """Makes the group follow and publish ``tables``, and no others. The caller has put the tables to copy into the
        ledger; this adds members that another role took out of the publication or altered in it. ``only_joins``: takes
        nothing out of the group's own publication. Without ``waits`` tables join only if none of them is locked. Raises
        as ``prepare``, LockTimeoutError when a table that joins was never free, TableChangedError when a table is gone
        or another has its name."""
        membership = await load_membership(self._bucket) if has_published else None
        membership = (membership or Membership.of(publication)).settled(publication)
        away = await members_away(self._source, membership, publication, self._wishes, self._names) if has_published else {}
        tables = [table for table in tables if table.oid not in away]
        membership, mended = await self._checked(membership, publication, tables, away)
        if has_published:
            tables = await self._joining(membership, publication, tables)
        left = leaving(membership, publication, tables, away, now())
        self._watch.followed.follow(table.oid for table in tables)
        alteration = PublicationAlteration.between(
            publication, tables, self._settings.publish, is_decoded=has_published, only_joins=only_joins, waits=waits
        )
        publication = await self._align(membership, publication, tables, alteration)
        followed = membership.adopt(publication, {table.oid for table in tables})
        await self._follow(followed, publication, left if has_published else [], tables)
        if self._copy is not None and mended:
            self._copy.begin(mended)
        return publication

    async def _make(self, tables: Sequence[SourceTable]) -> Publication:
        if self._names.chosen_publication:
            raise TerminalError(
                f"publication {self._names.publication} does not exist",
                f"let an administrator run: {creation(self._names, tables, self._settings.publish).as_string()}",
            )
        return await create_publication(self._source, self._names, tables, self._settings.publish)

    async def _selected(self, *, has_published: bool) -> list[SourceTable]:
        membership = await load_membership(self._bucket) if has_published else None
        wanted = await find_wanted(self._source, self._names, self._wishes, membership, self._settings.publish)
        if wanted.absent:
            raise wanted.absent[0]
        check_replica_identity(wanted.tables, wanted.operations, self._names.publication)
        report_kept(wanted.kept, wanted.tables)
        report_unfit(wanted.unfit)
        if self._copy is None:
            return wanted.tables
        return [table for table in wanted.tables if self._copy.progress.get(table.oid) is not None]  # others were made just now

    async def _checked(
        self, membership: Membership, publication: Publication, tables: Sequence[SourceTable], away: Collection[int]
    ) -> tuple[Membership, frozenset[int]]:
        """Returns the record with what is missing, and the tables that are copied again once they are published. Raises
        when neither an operator's decision nor a new copy makes up for something that is missing."""
        membership = self._with_wanted_options(membership, publication)
        breaks, mended = find_breaks(membership, publication, away), frozenset[int]()
        if self._copy is not None and are_mended(breaks, membership, publication, self._wishes):
            selected = {table.oid for table in tables}
            lsn = parse_lsn(publication.lsn)
            causes = {each.oid: CopyCause(each.schema, each.table, lsn, each.reason) for each in breaks if each.oid in selected}
            await self._copy.copy_again(causes, is_held=True)
            mended = frozenset(causes)
        ledger = await Ledger(self._bucket).load()
        membership, accepted = settle_breaks(membership.with_breaks(breaks), tables, ledger, self._wishes)
        report_breaks("a table is followed although changes may be missing at the targets", accepted)
        if membership.missing:
            await store_membership(self._bucket, membership)
            check_breaks(membership, self._wishes.copies)
        return membership, mended

    def _with_wanted_options(self, membership: Membership, publication: Publication) -> Membership:
        """Returns the membership with newly configured operations and options, which are no foreign alteration."""
        wanted = set(self._settings.publish)
        is_ours = publication.is_made_by(self._names)
        if set(membership.operations) != wanted and (is_ours or wanted == set(publication.operations)):
            log.warning(
                "other operations are published from now on; earlier ones are missing at the targets",
                before=",".join(membership.operations),
                now=",".join(self._settings.publish),
            )
        is_asked_for = set(membership.operations) != wanted == set(publication.operations)
        if is_asked_for or (publication.via_partition_root and not membership.via_partition_root):
            return replace(membership, xmin=publication.xmin)
        return membership

    async def _joining(
        self, membership: Membership, publication: Publication, tables: Sequence[SourceTable]
    ) -> list[SourceTable]:
        newborn = frozenset[int]()
        if publication.covers_more and not publication.is_made_by(self._names) and not self._wishes.copies:
            newborn = await self._watch.newborn(membership, publication, publication.oids)
        joining = choose_joining(membership, tables, self._wishes, newborn)
        for table, error in joining.refused:
            log.error("a table is not replicated", table=table.qualified_name, reason=error.fact, remedy=error.remedy)
        for table in joining.accepted:
            log.warning("a table joins without a copy; its earlier rows are missing at the targets", table=table.qualified_name)
        return joining.tables

    async def _align(
        self,
        membership: Membership,
        publication: Publication,
        tables: Sequence[SourceTable],
        alteration: PublicationAlteration,
    ) -> Publication:
        """Aligns the group's own publication with the configuration; only checks an administrator's."""
        if not publication.is_made_by(self._names):
            check_fit(publication, tables)
            return publication
        if not alteration:
            return publication

        async def announce(xid: str) -> None:
            if alteration.is_decoded:
                making = Making(xid, tuple(table.oid for table in tables))
                await store_membership(self._bucket, replace(membership, making=making))

        await alter_publication(self._source, self._names, alteration, announce, self._settings.retry.source)
        log.info(
            "publication is altered",
            publication=publication.name,
            joined=",".join(table.qualified_name for table in alteration.joining),
            left=",".join(
                [*(table.qualified_name for table in alteration.leaving), *(f"{each}.*" for each in alteration.schemas)]
            ),
        )
        altered = await find_publication(self._source, self._names)
        if altered is None:
            raise gone(self._names)
        return altered

    async def _follow(
        self, membership: Membership, publication: Publication, left: Sequence[Break], tables: Sequence[SourceTable]
    ) -> None:
        """Stores the followed tables, for the next check, for workers and for readers."""
        report_left(left)
        names = {table.qualified_name for table in tables}
        away = {entry.oid: entry for entry in (*membership.left, *left)}
        # a table whose name another one has now stays in the record, for the LSN at which it left: copies know tables by OID
        still_away = tuple(
            entry
            for entry in away.values()
            if entry.oid not in membership.oids and (self._copy is not None or entry.qualified_name not in names)
        )
        ledger = await Ledger(self._bucket).load()
        recopied = {oid for oid in ledger.tables if is_copied_anew(ledger, oid)}
        membership = await self._watch.begin(replace(membership, left=still_away), publication, recopied)
        if self._copy is None:
            await note_membership(Ledger(self._bucket), membership.oids)
        else:
            await self._copy.note_left([entry.oid for entry in left])
        await store_membership(self._bucket, membership)
        oids = [table.oid for table in tables]
        described = await describe_tables(self._source, self._names, oids, self._source.major_version)
        await store_tables(self._bucket, described, self._source.encoding)


def report_partitioned(tables: Sequence[SourceTable]) -> None:
    """Logs one line for those of them that are partitioned."""
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
