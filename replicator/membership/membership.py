"""The state of a group's publication and the tables that it follows, under ``publication`` in the state bucket.

The record is compared with the catalog at the start of each session and every minute during it. A foreign difference
means that changes may be missing; it is kept as a ``Break`` until an operator has decided about it, so a restart does
not heal it. The group's own alteration is announced (``Making``) before it is made, so that after a kill in between it
is not mistaken for a foreign one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pgsluice.replicator.source.publication import Publication, PublishedTable
from pgsluice.replicator.source.source import TablePartition
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.broker.record import LsnText, MalformedError, TimeText, malformed, of_fields, pack, unpack
from pgsluice.shared.wire.table import TableName

_PUBLICATION_KEY = "publication"

TAKEN_OUT = "another client removed it from the publication"

MOST_BREAKS = 1000
"""Number of breaks that are kept of each kind: a record has to fit into one message."""


@dataclass(frozen=True, slots=True)
class Member:
    """A table that is followed since ``since`` (an LSN). The rest is from the catalog; ``partitions`` is None when they
    were never read, and for a table that is not partitioned. ``chosen_as`` is the schema and name by which ``tables``
    chose it, when it was renamed since; () while that is its current name."""

    oid: int
    schema: str
    table: str
    kind: str
    since: LsnText
    xmin: str
    row_filter: str
    columns: str
    partitions: tuple[TablePartition, ...] | None = None
    chosen_as: tuple[str, ...] = ()

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def chosen_name(self) -> TableName:
        """The name by which ``tables`` chose it."""
        schema, table = self.chosen_as or (self.schema, self.table)
        return schema, table

    def going_on_from(self, before: Member) -> Member:
        """Returns this member with the history of ``before`` (the same table, perhaps renamed)."""
        chosen = before.chosen_name
        chosen_as = () if chosen == (self.schema, self.table) else chosen
        return replace(self, since=before.since, partitions=before.partitions, chosen_as=chosen_as)


@dataclass(frozen=True, slots=True)
class Break:
    """Changes or rows of a table may be missing at the targets since ``lsn``, which was at ``at``."""

    oid: int
    schema: str
    table: str
    lsn: LsnText
    at: TimeText
    reason: str

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Making:
    """An alteration by this group that may have happened: its transaction, and the tables after it."""

    xid: str
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Membership:
    """``seen_lsn`` and ``seen_at`` are from the last check that found everything correct. That check saw no transaction
    from ``seen_xid`` on.

    ``left``: tables that are no longer followed, with the place from which changes are missing. ``missing``: tables
    that are followed, whose changes may be missing: the group does not continue before an operator decided.
    ``partition_changes``: changes of partitions that targets received no message about. ``unpublished``: tables of
    whole schemas that are not followed.
    """

    name: str
    oid: int
    xmin: str
    operations: tuple[str, ...]
    via_partition_root: bool
    members: tuple[Member, ...]
    seen_lsn: LsnText
    seen_at: TimeText
    left: tuple[Break, ...] = ()
    missing: tuple[Break, ...] = ()
    partition_changes: tuple[Break, ...] = ()
    unpublished: tuple[str, ...] = ()
    making: Making | None = None
    seen_xid: str = ""
    former: tuple[str, ...] = ()
    """Names of dropped tables, without other facts: targets can hold their rows."""

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(member.oid for member in self.members)

    @property
    def known_names(self) -> frozenset[str]:
        """Tables that are followed or were, whatever their oids."""
        members = frozenset(member.qualified_name for member in self.members)
        return members | {entry.qualified_name for entry in self.left} | frozenset(self.former)

    @classmethod
    def of(cls, publication: Publication) -> Membership:
        """Returns the publication as it is, taken as what it should be."""
        return cls(
            name=publication.name,
            oid=publication.oid,
            xmin=publication.xmin,
            operations=publication.operations,
            via_partition_root=publication.via_partition_root,
            members=tuple(_member(table, publication.lsn) for table in publication.tables),
            seen_lsn=publication.lsn,
            seen_at=now(),
            seen_xid=publication.next_xid,
        )

    def adopt(self, publication: Publication, oids: Collection[int]) -> Membership:
        """Returns the record with the publication as it is now, which is as it should be, and the tables in ``oids`` as its
        members."""
        now_found, known = Membership.of(publication), {member.oid: member for member in self.members}
        members = tuple(
            member.going_on_from(known[member.oid]) if member.oid in known else member
            for member in now_found.members
            if member.oid in oids
        )
        return replace(
            now_found,
            members=members,
            left=self.left,
            missing=self.missing,
            partition_changes=self.partition_changes,
            unpublished=self.unpublished,
            former=self.former,
        )

    def without(self, away: Mapping[int, str]) -> tuple[Membership, list[Break]]:
        """Returns the record without the members that are ``away``, and an entry for each of these. ``away`` has the reason by
        OID."""
        left = [
            Break(member.oid, member.schema, member.table, self.seen_lsn, self.seen_at, away[member.oid])
            for member in self.members
            if member.oid in away
        ]
        members = tuple(member for member in self.members if member.oid not in away)
        return replace(self, members=members, left=(*self.left, *left)), left

    def settled(self, publication: Publication) -> Membership:
        """Returns the membership without ``making``, after the catalog shows whether it happened."""
        if self.making is None:
            return self
        xid, oids = self.making.xid, frozenset(self.making.oids)
        is_marked = publication.xmin == xid or any(table.xmin == xid for table in publication.tables)
        if not is_marked and (oids == self.oids or publication.oids != oids):
            return replace(self, making=None)
        ours = {table.oid: _member(table, self.seen_lsn) for table in publication.tables if table.xmin == xid}
        kept = [ours.pop(member.oid, member) for member in self.members if member.oid in oids]
        gone = [member for member in self.members if member.oid not in oids]
        reason = "it is no longer among the tables"
        left = [Break(member.oid, member.schema, member.table, self.seen_lsn, self.seen_at, reason) for member in gone]
        return replace(
            self,
            xmin=xid if publication.xmin == xid else self.xmin,
            operations=publication.operations if publication.xmin == xid else self.operations,
            members=(*kept, *ours.values()),
            left=(*self.left, *left),
            making=None,
        )

    def with_breaks(self, breaks: Iterable[Break]) -> Membership:
        """A table's first break stays the one that counts."""
        known = {entry.oid for entry in self.missing}
        return replace(self, missing=(*self.missing, *(entry for entry in breaks if entry.oid not in known)))


@dataclass(frozen=True, slots=True)
class _PublicationRecord:
    """``content`` is the membership, packed; the rest is for readers."""

    publication: str
    tables: int
    seen_at: TimeText
    content: str


def _member(table: PublishedTable, lsn: str) -> Member:
    return Member(table.oid, table.schema, table.name, table.kind, lsn, table.xmin, table.row_filter, table.columns)


async def load_membership(bucket: StateBucket) -> Membership | None:
    """Returns None before the group's first session, and for a group that an earlier version started."""
    entry = await bucket.read(_PUBLICATION_KEY, _PublicationRecord)
    if entry is None:
        return None
    try:
        return of_fields(Membership, unpack(entry.value.content))
    except MalformedError as error:
        raise malformed(_PUBLICATION_KEY, bucket.described, error) from None


async def store_membership(bucket: StateBucket, membership: Membership) -> None:
    bounded = replace(
        membership,
        former=membership.former[-MOST_BREAKS:],
        left=membership.left[-MOST_BREAKS:],
        partition_changes=membership.partition_changes[-MOST_BREAKS:],
        unpublished=membership.unpublished[:MOST_BREAKS],
    )
    content = pack(bounded)
    record = _PublicationRecord(membership.name, len(membership.members), membership.seen_at, content)
    await bucket.put(_PUBLICATION_KEY, record)


def find_breaks(membership: Membership, publication: Publication, away: Collection[int]) -> list[Break]:
    """Returns the members whose changes may be missing, because another role altered the publication since the last
    check. The record is settled. ``away`` are OIDs of members that leave for other reasons. A table that was added to
    the publication breaks nothing."""
    reason = ""
    if publication.xmin != membership.xmin:
        reason = "another client altered the publication's operations, options or owner"
    found = {table.oid: table for table in publication.tables}
    breaks = []
    for member in membership.members:
        if member.oid in away:
            continue
        why = reason or _break_of(member, found.get(member.oid))
        if why:
            breaks.append(Break(member.oid, member.schema, member.table, membership.seen_lsn, membership.seen_at, why))
    return breaks


def _break_of(member: Member, found: PublishedTable | None) -> str:
    """Returns why changes of the member may be missing, "" if none are."""
    if found is None:
        return TAKEN_OUT
    # An earlier version recorded only the first part for a table that is published with its schema.
    if member.xmin in (found.xmin, found.xmin.partition("/")[0]):
        return ""
    if (found.row_filter, found.columns) != (member.row_filter, member.columns):
        return "another client changed its row filter or its columns in the publication"
    return "another client removed it from the publication and added it again"
