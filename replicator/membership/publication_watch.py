"""What becomes of a group's publication, its tables and their partitions: compared with the record, reported, and kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import LiteralString

from pgsluice.replicator.membership.joining import Wishes, check_breaks
from pgsluice.replicator.membership.membership import Break, Membership, find_breaks, load_membership, store_membership
from pgsluice.replicator.source.publication import Publication, check_identity, find_publication, gone
from pgsluice.replicator.source.source import Source, partition_changes, read_partitions
from pgsluice.replicator.source.tables import tables_of
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import TARGET_SCHEMA, GroupNames

# A partition is one with its root, where that is followed or new itself.
_NEWCOMERS: LiteralString = """
    WITH wanted AS (SELECT DISTINCT c.oid
                      FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS pattern (schema, name)
                      JOIN pg_namespace n ON n.nspname LIKE pattern.schema
                      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname LIKE pattern.name
                     WHERE c.relkind IN ('r', 'p') AND left(n.nspname, 3) <> 'pg_'
                       AND n.nspname NOT IN ('information_schema', %(own)s))
    SELECT n.nspname::text, c.relname::text
      FROM wanted JOIN pg_class c ON c.oid = wanted.oid JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_class r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
     WHERE c.relpersistence = 'p' AND c.oid <> ALL(%(oids)s::oid[])
       AND (r.oid IS NULL OR r.oid <> ALL(%(oids)s::oid[]) AND r.oid NOT IN (SELECT oid FROM wanted))
     ORDER BY 1, 2
"""

_NAMED: LiteralString = (
    "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)

log = telemetry.logger(__name__)


class PublicationWatch:
    """``begin`` or ``verify`` at the start of a session; then ``verify`` now and then."""

    def __init__(self, wishes: Wishes, names: GroupNames, source: Source, bucket: StateBucket) -> None:
        self.wishes = wishes
        """What is asked for now."""
        self._names = names
        self._source = source
        self._bucket = bucket
        self._membership: Membership | None = None
        self._reported: set[str] = set()

    async def begin(self, membership: Membership, copied_anew: Collection[int]) -> Membership:
        """Goes on from ``membership``. Returns it with what the catalog says beside it; what happened to partitions of tables
        that are ``copied_anew`` does not matter."""
        membership = await self._with_partitions(membership, membership.seen_lsn, copied_anew)
        self._membership = await self._with_newcomers(membership)
        return self._membership

    async def verify(self) -> Publication:
        """Compares the catalog with the record, reports what changed, and keeps it. Raises TerminalError when changes may be
        missing, TransientError when the source does not answer."""
        publication = await find_publication(self._source, self._names)
        if publication is None:
            raise gone(self._names)
        membership = self._membership or await load_membership(self._bucket) or Membership.of(publication)
        membership = membership.settled(publication)
        check_identity(publication, membership.oid)
        dropped = await dropped_members(self._source, membership, publication, copies=self.wishes.copies)
        broken = membership.with_breaks(find_breaks(membership, publication, dropped))
        if broken.missing:
            await self._remember(broken)
            check_breaks(broken, self.wishes.copies)
        membership = await self._without_dropped(membership, dropped)
        self._report_names(membership, publication)
        membership = _with_newborn(membership, publication)
        membership = await self._with_partitions(membership, publication.lsn)
        membership = await self._with_newcomers(membership)
        self._membership = replace(membership, seen_lsn=publication.lsn, seen_at=now())
        await self._remember(self._membership)
        return publication

    @property
    def membership(self) -> Membership:
        """As it was found last."""
        assert self._membership is not None
        return self._membership

    async def forget(self, is_forgotten: Callable[[str, str], bool]) -> None:
        """Removes what the record holds of tables that are not followed, by schema and name. Raises TransientError."""
        membership = self.membership

        def kept(entries: Iterable[Break]) -> tuple[Break, ...]:
            return tuple(entry for entry in entries if not is_forgotten(entry.schema, entry.table))

        self._membership = replace(
            membership,
            left=kept(membership.left),
            missing=kept(membership.missing),
            partition_changes=kept(membership.partition_changes),
        )
        await store_membership(self._bucket, self._membership)

    async def _remember(self, membership: Membership) -> None:
        """A broker that does not answer costs no session: the next look finds what this one found."""
        try:
            await store_membership(self._bucket, membership)
        except TransientError as error:
            log.warning("what is known of the publication is not recorded now", reason=str(error))

    async def _without_dropped(self, membership: Membership, dropped: Mapping[int, str]) -> Membership:
        left = [
            Break(member.oid, member.schema, member.table, membership.seen_lsn, membership.seen_at, dropped[member.oid])
            for member in membership.members
            if member.oid in dropped
        ]
        report_left(left)
        members = tuple(member for member in membership.members if member.oid not in dropped)
        return replace(membership, members=members, left=(*membership.left, *left))

    async def _with_partitions(self, membership: Membership, lsn: str, copied_anew: Collection[int] = ()) -> Membership:
        """With the trees as they are, and what changed in them."""
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
        """With the tables that a pattern matches and that are not followed."""
        patterns = self.wishes.matching
        if not patterns:
            return replace(membership, unpublished=())
        parameters = {
            "schemas": [pattern.schema.like for pattern in patterns if pattern.schema is not None],
            "tables": [pattern.name.like for pattern in patterns],
            "oids": list(membership.oids),
            "own": TARGET_SCHEMA,
        }
        found = await self._source.rows("looking for new tables", _NEWCOMERS, parameters)
        names = tuple(f"{schema}.{table}" for schema, table in found if not self.wishes.is_removed(schema, table))
        if names and not self.wishes.copies:
            remedy = "say 'pgsluice tables add --without-copy', or name them in without-copy at a start"
            self._report_once("tables of a whole schema or a pattern are not replicated", tables=",".join(names), remedy=remedy)
        return replace(membership, unpublished=names)

    def _report_names(self, membership: Membership, publication: Publication) -> None:
        known = {member.oid: member.qualified_name for member in membership.members}
        for table in publication.tables:
            before = known.get(table.oid)
            if before is None and not publication.covers_more:
                self._report_once("somebody added a table to the publication", table=table.qualified_name)
            elif before is not None and before != table.qualified_name:
                is_wanted = self.wishes.wants(table.schema, table.name)
                remedy = "rules and routes go by names" if is_wanted else "it is kept, by its OID; name it so in tables"
                self._report_once("a table was renamed at the source", table=before, now=table.qualified_name, remedy=remedy)

    def _report_once(self, event: str, **fields: str) -> None:
        if repr((event, fields)) not in self._reported:
            self._reported.add(repr((event, fields)))
            log.warning(event, **fields)


def _with_newborn(membership: Membership, publication: Publication) -> Membership:
    """With tables that a publication of whole schemas took in when they were made: nothing of them is missing."""
    if not publication.covers_more:
        return membership
    for table in publication.tables:
        if table.oid not in membership.oids:
            log.info("a new table is replicated", table=table.qualified_name)
    return membership.adopt(publication)


async def dropped_members(source: Source, membership: Membership, publication: Publication, *, copies: bool) -> dict[int, str]:
    """What became of members that do not exist any more, by oid. ``copies``: the group copies tables that join it."""
    unpublished = membership.oids - publication.oids
    if not unpublished:
        return {}
    gone = unpublished - {table.oid for table in await tables_of(source, unpublished)}
    again = "is copied" if copies else "is not replicated before a person asks for it"
    reasons = {}
    for member in membership.members:
        if member.oid in gone:
            made = await source.rows("looking up a table", _NAMED, [member.schema, member.table])
            reasons[member.oid] = (
                f"it was dropped and made again at the source; the new one {again}" if made else "it was dropped at the source"
            )
    return reasons


def report_left(left: Iterable[Break]) -> None:
    report_breaks("a table is not replicated any more; its changes from now on are missing at the targets", left)


def report_breaks(event: str, breaks: Iterable[Break]) -> None:
    """One line for each."""
    for entry in breaks:
        log.warning(event, table=entry.qualified_name, since_lsn=entry.lsn, reason=entry.reason)
