"""The watch over a group's publication, its tables and their partitions.

It compares them with the record, reports what others altered, and stores the new state in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import LiteralString

from pgsluice.replicator.followed_tables import FollowedTables
from pgsluice.replicator.membership.joining import Wishes, check_breaks
from pgsluice.replicator.membership.membership import (
    TAKEN_OUT,
    Break,
    Membership,
    find_breaks,
    load_membership,
    store_membership,
)
from pgsluice.replicator.snapshot.copy_state import CopyCause
from pgsluice.replicator.source.publication import Publication, check_identity, find_publication, gone
from pgsluice.replicator.source.source import Source, TablePartition, attached_partitions, partition_changes, read_partitions
from pgsluice.replicator.source.tables import tables_of
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import TARGET_SCHEMA, GroupNames
from pgsluice.shared.wire.position import parse_lsn

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
       AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
     ORDER BY 1, 2
"""

_NAMED: LiteralString = (
    "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)

# A table's system columns are written when it is made and never again.
_MADE_SINCE: LiteralString = """
    SELECT a.attrelid::bigint FROM pg_attribute a
     WHERE a.attrelid = ANY(%s::oid[]) AND a.attname = 'tableoid' AND age(a.xmin) <= age(%s::xid)
"""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Attached:
    """Partitions, by their OIDs, that were attached to a root, whose tree is ``after`` now. If they held rows, a new copy of the
    root, for ``cause``, brings the targets up to date."""

    cause: CopyCause
    oids: tuple[int, ...]
    after: tuple[TablePartition, ...]


class PublicationWatch:
    """``begin`` or ``verify`` at the start of a session; then ``verify`` now and then."""

    def __init__(self, wishes: Wishes, names: GroupNames, source: Source, bucket: StateBucket) -> None:
        self.wishes = wishes
        """The current requests."""
        self._names = names
        self._source = source
        self._bucket = bucket
        self._membership: Membership | None = None
        self._takes_newborn = False
        self._reported: set[str] = set()
        self._told: set[int] = set()
        self.followed = FollowedTables()
        """The tables whose changes go into the stream."""
        self.is_altered = False
        """True if the last check found an alteration of the published tables, which ``GroupPublication.bring`` repairs."""
        self.attached: dict[int, Attached] = {}
        """Attached partitions by the OIDs of their roots. The caller deals with them and then calls ``settle_attached``."""

    async def begin(self, membership: Membership, publication: Publication, copied_anew: Collection[int]) -> Membership:
        """Begins with ``membership``, which is of ``publication``. Returns it with the partitions and new tables that
        the catalog has now. Ignores alterations of the partitions of tables that are ``copied_anew``."""
        membership = await self._with_partitions(membership, publication.lsn, copied_anew)
        membership = await self._with_newcomers(membership)
        self._follow(membership, publication)
        await self._report_left_out(membership, publication)
        return membership

    async def verify(self) -> Publication:
        """Compares the catalog with the record, reports the differences, and stores the new record. Raises TerminalError when
        changes may be missing and no copy makes up for them, TransientError when the source does not answer."""
        publication = await find_publication(self._source, self._names)
        if publication is None:
            raise gone(self._names)
        membership = self._membership or await load_membership(self._bucket) or Membership.of(publication)
        membership = membership.settled(publication)
        check_identity(publication, membership.oid)
        away = await members_away(self._source, membership, publication, self.wishes, self._names)
        breaks = find_breaks(membership, publication, away)
        self.is_altered = bool(breaks) or self._has_strays(membership, publication)
        if breaks and not are_mended(breaks, membership, publication, self.wishes):
            broken = membership.with_breaks(breaks)
            await self._remember(broken)
            check_breaks(broken, self.wishes.copies)
        membership, left = membership.without(away)
        report_left(left)
        self._report_names(membership, publication)
        membership = await self._with_newborn(membership, publication)
        membership = await self._with_partitions(membership, publication.lsn)
        membership = await self._with_newcomers(membership)
        membership = replace(membership, seen_lsn=publication.lsn, seen_at=now(), seen_xid=publication.next_xid)
        self._follow(membership, publication)
        await self._report_left_out(membership, publication)
        await self._remember(membership)
        return publication

    async def admit(self, oid: int) -> None:
        """Follows the table, whose first changes are about to come, if it was created in what an administrator's publication
        covers: no change of such a table is missing, even in a group that only streams. Raises TransientError."""
        if self._takes_newborn and not self.followed.has(oid):
            publication = await find_publication(self._source, self._names)
            if publication is not None:
                self.followed.follow(await self.newborn(self.membership, publication, [oid]))

    async def newborn(self, membership: Membership, publication: Publication, among: Collection[int]) -> frozenset[int]:
        """Returns the tables of ``among`` that are wanted and were created since the last check. They have been
        published since their creation."""
        oids = publication.oids & set(among) - membership.oids - {entry.oid for entry in membership.left}
        if not oids:
            return frozenset()
        made: Collection[int] = oids
        if membership.seen_xid:
            since = [list(oids), membership.seen_xid]
            made = {oid for (oid,) in await self._source.rows("looking up tables", _MADE_SINCE, since)}
        tables = [table for table in await tables_of(self._source, made) if table.reason_to_leave_out is None]
        return frozenset(table.oid for table in tables if self.wishes.wants(table.schema, table.name))

    async def _with_newborn(self, membership: Membership, publication: Publication) -> Membership:
        if not self._takes_newborn:
            return membership
        newborn = await self.newborn(membership, publication, publication.oids)
        newborn |= {oid for oid in publication.oids - membership.oids if self.followed.has(oid)}
        for table in publication.tables:
            if table.oid in newborn:
                log.info("a new table is replicated", table=table.qualified_name)
        return membership.adopt(publication, membership.oids | newborn) if newborn else membership

    def _has_strays(self, membership: Membership, publication: Publication) -> bool:
        """Returns whether the group's own publication has a schema or a table that the group did not put there."""
        return publication.is_made_by(self._names) and bool(publication.schemas or publication.oids - membership.oids)

    def _follow(self, membership: Membership, publication: Publication) -> None:
        covers_by_itself = publication.covers_more and not publication.is_made_by(self._names)
        self._takes_newborn = covers_by_itself and not self.wishes.copies
        if self._membership is None:
            here = publication.oids
            ends = {entry.oid: parse_lsn(entry.lsn if entry.oid in here else publication.lsn) for entry in membership.left}
            self.followed.begin(membership.oids, ends)
        else:
            for oid in self._membership.oids - membership.oids:
                self.followed.leave(oid, parse_lsn(publication.lsn))
            self.followed.follow(membership.oids)
        self._membership = membership

    @property
    def membership(self) -> Membership:
        """The membership of the last check."""
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

    async def forget_tables(self, oids: Collection[int]) -> list[str]:
        """Removes tables that left from the record, which keeps only their names. Returns these. Raises TransientError."""
        membership = self.membership
        names = [entry.qualified_name for entry in membership.left if entry.oid in oids]
        self._membership = replace(
            membership,
            left=tuple(entry for entry in membership.left if entry.oid not in oids),
            former=tuple(dict.fromkeys([*membership.former, *names])),
        )
        await store_membership(self._bucket, self._membership)
        return names

    async def _remember(self, membership: Membership) -> None:
        """Stores the membership. A broker that does not answer costs no session: the next check finds the same."""
        try:
            await store_membership(self._bucket, membership)
        except TransientError as error:
            log.warning("the state of the publication cannot be recorded now", reason=str(error))

    async def _with_partitions(self, membership: Membership, lsn: str, copied_anew: Collection[int] = ()) -> Membership:
        """Returns the membership with the current partition trees, and the changes in them."""
        roots = [member.oid for member in membership.members if member.kind == "p"]
        trees = await read_partitions(self._source, roots)
        known = {(entry.oid, entry.reason) for entry in membership.partition_changes}
        found, members = [], []
        for member in membership.members:
            before, after = member.partitions, trees.get(member.oid)
            if before is not None and after is not None and member.oid not in copied_anew:
                for change in partition_changes(before, after):
                    if (member.oid, change) not in known:
                        log.warning(
                            "partitions changed", table=member.qualified_name, change=change, remedy=self._partition_remedy
                        )
                        found.append(Break(member.oid, member.schema, member.table, lsn, now(), change))
                if self.wishes.copies and (attached := attached_partitions(before, after)):
                    names, oids = ", ".join(each.name for each in attached), tuple(each.oid for each in attached)
                    reason = f"a partition was attached that possibly has rows: {names}"
                    cause = CopyCause(member.schema, member.table, parse_lsn(lsn), reason)
                    self.attached[member.oid] = Attached(cause, oids, after)
                    after = before  # the next process finds the partitions again, until ``settle_attached``
            members.append(member if after is None else replace(member, partitions=after))
        return replace(membership, members=tuple(members), partition_changes=(*membership.partition_changes, *found))

    @property
    def _partition_remedy(self) -> str:
        if self.wishes.copies:
            return "if a partition was attached with rows, the table is copied again; otherwise run 'pgsluice tables resync'"
        return "to bring the table up to date, copy it again"

    async def settle_attached(self, oid: int) -> None:
        """Takes the partitions that were attached to this root into the record. Raises TransientError."""
        after = self.attached.pop(oid).after
        members = [replace(each, partitions=after) if each.oid == oid else each for each in self.membership.members]
        self._membership = replace(self.membership, members=tuple(members))
        await store_membership(self._bucket, self._membership)

    async def _with_newcomers(self, membership: Membership) -> Membership:
        """Returns the membership with the tables that a pattern matches and that are not followed."""
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
            remedy = "run 'pgsluice tables add --without-copy', or name them in without-copy at a start"
            self._report_once("tables of a whole schema or a pattern are not replicated", tables=",".join(names), remedy=remedy)
        return replace(membership, unpublished=names)

    def _report_names(self, membership: Membership, publication: Publication) -> None:
        known = {member.oid: member.qualified_name for member in membership.members}
        for table in publication.tables:
            before = known.get(table.oid)
            if before is not None and before != table.qualified_name:
                is_wanted = self.wishes.wants(table.schema, table.name)
                remedy = "rules and routes go by names" if is_wanted else "it is kept, by its OID; name it so in tables"
                self._report_once("a table was renamed at the source", table=before, now=table.qualified_name, remedy=remedy)

    async def _report_left_out(self, membership: Membership, publication: Publication) -> None:
        oids = {oid for oid in publication.oids - membership.oids if not self.followed.has(oid)} - self._told
        self._told |= oids
        for table in await tables_of(self._source, oids) if oids else ():
            reason = table.reason_to_leave_out
            if publication.via_partition_root and table.root_oid in publication.oids:
                continue  # it is published under its root
            if reason is not None:
                event = "the publication has a table that a group follows only when tables names it; it is left out"
                log.info(event, table=table.qualified_name, reason=f"it is {reason}")
            elif not self.wishes.wants(table.schema, table.name):
                event = "the publication has a table that the group does not ask for; it is left out"
                log.warning(event, table=table.qualified_name, remedy="name it in tables, or run 'pgsluice tables add'")
            elif not self.wishes.copies:
                event = "a table came into the publication; it is left out, because its earlier rows are missing at the targets"
                remedy = "run 'pgsluice tables add --without-copy', or name it in without-copy at a start"
                log.warning(event, table=table.qualified_name, remedy=remedy)

    def _report_once(self, event: str, **fields: str) -> None:
        if repr((event, fields)) not in self._reported:
            self._reported.add(repr((event, fields)))
            log.warning(event, **fields)


def are_mended(breaks: Collection[Break], membership: Membership, publication: Publication, wishes: Wishes) -> bool:
    """Returns whether copies of the tables in ``breaks`` make up for them: in a group that copies, unless another role
    altered the options of the publication, which would cost a copy of all tables."""
    return bool(breaks) and wishes.copies and publication.xmin == membership.xmin


async def members_away(
    source: Source, membership: Membership, publication: Publication, wishes: Wishes, names: GroupNames
) -> dict[int, str]:
    """Returns the members that leave, by OID, each with the reason: dropped tables, and tables that are no longer in an
    administrator's publication."""
    away = await _dropped_members(source, membership, publication, copies=wishes.copies)
    if not publication.is_made_by(names):
        away |= dict.fromkeys(membership.oids - publication.oids - away.keys(), TAKEN_OUT)
    return away


async def _dropped_members(source: Source, membership: Membership, publication: Publication, *, copies: bool) -> dict[int, str]:
    """Returns the fates of members that no longer exist, by oid. ``copies``: the group copies tables that join it."""
    unpublished = membership.oids - publication.oids
    if not unpublished:
        return {}
    gone = unpublished - {table.oid for table in await tables_of(source, unpublished)}
    again = "is copied" if copies else "is not replicated until an operator adds it"
    reasons = {}
    for member in membership.members:
        if member.oid in gone:
            made = await source.rows("looking up a table", _NAMED, [member.schema, member.table])
            reasons[member.oid] = (
                f"it was dropped and created again at the source; the new one {again}" if made else "it was dropped at the source"
            )
    return reasons


def report_left(left: Iterable[Break]) -> None:
    report_breaks("a table is not replicated any more; its changes from now on are missing at the targets", left)


def report_breaks(event: str, breaks: Iterable[Break]) -> None:
    """Logs one line for each."""
    for entry in breaks:
        log.warning(event, table=entry.qualified_name, since_lsn=entry.lsn, reason=entry.reason)
