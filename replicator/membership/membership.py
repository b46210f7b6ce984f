"""What a group made of its publication and which tables it follows, under ``publication`` in the state bucket.

The record is compared with the catalog at the start of each session and every minute beside it. A difference that is not ours
means that changes may be missing; it is kept as a ``Break`` until a person has decided about it, so a restart does not heal it.
An alteration of our own is announced (``Making``) before it is made, so that a kill in between is not taken for somebody else's.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import orjson

from pgsluice.replicator.source.partition_tree import Partition
from pgsluice.replicator.source.publication import Publication, PublishedTable
from pgsluice.shared.broker.bucket import PUBLICATION_KEY, StateBucket
from pgsluice.shared.broker.ledger import now
from pgsluice.shared.errors import TerminalError

MOST_BREAKS = 1000
"""Of each kind that are kept: a record has to fit into one message."""


@dataclass(frozen=True, slots=True)
class Member:
    """A table that is followed since ``since`` (an LSN). The rest is what the catalog said of it; ``partitions`` is None when
    they were never looked at, and for a table that is not partitioned."""

    oid: int
    schema: str
    table: str
    kind: str
    since: str
    xmin: str
    row_filter: str
    columns: str
    partitions: tuple[Partition, ...] | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @classmethod
    def decode(cls, value: dict[str, Any]) -> Self:
        partitions = value.get("partitions")
        decoded = None if partitions is None else tuple(map(Partition.decode, partitions))
        return cls(**_known(cls, value) | {"partitions": decoded})


@dataclass(frozen=True, slots=True)
class Break:
    """Changes or rows of a table may be missing at the targets since ``lsn``, which was at ``at``."""

    oid: int
    schema: str
    table: str
    lsn: str
    at: str
    reason: str

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @classmethod
    def decode(cls, value: dict[str, Any]) -> Self:
        return cls(**_known(cls, value))


@dataclass(frozen=True, slots=True)
class Making:
    """An alteration of ours that may have happened: its transaction, and the tables after it."""

    xid: str
    oids: tuple[int, ...]

    @classmethod
    def decode(cls, value: dict[str, Any]) -> Self:
        return cls(value["xid"], tuple(value["oids"]))


@dataclass(frozen=True, slots=True)
class Membership:
    """``seen_lsn`` and ``seen_at`` are those of the last look that found everything as it should be.

    ``left``: tables that are no longer followed, with the place from which changes are missing. ``missing``: tables that are
    followed, and of which changes may be missing: the group does not go on before somebody decided. ``partition_changes``: what
    happened to partitions, which no change told the targets. ``unpublished``: tables of whole schemas that nobody follows.
    """

    name: str
    oid: int
    xmin: str
    operations: tuple[str, ...]
    via_partition_root: bool
    members: tuple[Member, ...]
    seen_lsn: str
    seen_at: str
    left: tuple[Break, ...] = ()
    missing: tuple[Break, ...] = ()
    partition_changes: tuple[Break, ...] = ()
    unpublished: tuple[str, ...] = ()
    making: Making | None = None

    @property
    def oids(self) -> frozenset[int]:
        return frozenset(member.oid for member in self.members)

    @property
    def known_names(self) -> frozenset[str]:
        """Tables that are followed or were, whatever their oids."""
        return frozenset(member.qualified_name for member in self.members) | {entry.qualified_name for entry in self.left}

    @classmethod
    def of(cls, publication: Publication) -> Membership:
        """The publication as it is, taken as what it should be."""
        return cls(
            name=publication.name,
            oid=publication.oid,
            xmin=publication.xmin,
            operations=publication.operations,
            via_partition_root=publication.via_partition_root,
            members=tuple(_member(table, publication.lsn) for table in publication.tables),
            seen_lsn=publication.lsn,
            seen_at=now(),
        )

    def adopt(self, publication: Publication) -> Membership:
        """The same with the publication as it is now, which is as it should be."""
        now_found, known = Membership.of(publication), {member.oid: member for member in self.members}
        members = tuple(
            replace(member, since=known[member.oid].since, partitions=known[member.oid].partitions)
            if member.oid in known
            else member
            for member in now_found.members
        )
        return replace(
            now_found,
            members=members,
            left=self.left,
            missing=self.missing,
            partition_changes=self.partition_changes,
            unpublished=self.unpublished,
        )

    def settled(self, publication: Publication) -> Membership:
        """The same without ``making``, which the catalog shows to have happened or not."""
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

    def encode(self) -> dict[str, Any]:
        content = base64.b64encode(zlib.compress(orjson.dumps(asdict(self)))).decode()
        return {"publication": self.name, "tables": len(self.members), "seen_at": self.seen_at, "content": content}

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Self:
        """Raises TerminalError for what ``encode`` does not make. Fields that are not known are passed over."""
        try:
            content = orjson.loads(zlib.decompress(base64.b64decode(value["content"])))
            lists: dict[str, Callable[[dict[str, Any]], Any]] = {
                "members": Member.decode,
                "left": Break.decode,
                "missing": Break.decode,
                "partition_changes": Break.decode,
            }
            decoded: dict[str, Any] = {name: tuple(map(decode, content.get(name, ()))) for name, decode in lists.items()}
            making = content.get("making")
            return cls(
                **_known(cls, content)
                | decoded
                | {
                    "operations": tuple(content["operations"]),
                    "unpublished": tuple(content.get("unpublished", ())),
                    "making": None if making is None else Making.decode(making),
                }
            )
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise TerminalError(
                f"key {PUBLICATION_KEY} of the group's state bucket is malformed ({type(error).__name__})",
                "a newer pgsluice wrote it, or a person did; use that version, or run 'pgsluice drop' and start again",
            ) from None


def _known(record: type, value: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: value[field.name] for field in fields(record) if field.name in value}


def _member(table: PublishedTable, lsn: str) -> Member:
    return Member(table.oid, table.schema, table.name, table.kind, lsn, table.xmin, table.row_filter, table.columns)


async def load_membership(bucket: StateBucket) -> Membership | None:
    """None before the group's first session, and for a group that an earlier version started."""
    entry = await bucket.get(PUBLICATION_KEY)
    return None if entry is None else Membership.decode(entry.value)


async def store_membership(bucket: StateBucket, membership: Membership) -> None:
    bounded = replace(
        membership,
        left=membership.left[-MOST_BREAKS:],
        partition_changes=membership.partition_changes[-MOST_BREAKS:],
        unpublished=membership.unpublished[:MOST_BREAKS],
    )
    await bucket.put(PUBLICATION_KEY, bounded.encode())


def find_breaks(membership: Membership, publication: Publication, dropped: Collection[int]) -> list[Break]:
    """Members whose changes may be missing since the last look: an alteration came between. The record is settled. ``dropped``
    are oids of tables that do not exist any more; a table that somebody added to the publication breaks nothing."""
    reason = ""
    if publication.xmin != membership.xmin:
        reason = "somebody altered the publication's operations, options or owner"
    found = {table.oid: table for table in publication.tables}
    breaks = []
    for member in membership.members:
        if member.oid in dropped:
            continue
        why = reason or _break_of(member, found.get(member.oid))
        if why:
            breaks.append(Break(member.oid, member.schema, member.table, membership.seen_lsn, membership.seen_at, why))
    return breaks


def _break_of(member: Member, found: PublishedTable | None) -> str:
    """Why changes of the member may be missing, "" when none are."""
    if found is None:
        return "somebody took it out of the publication"
    if found.xmin == member.xmin:
        return ""
    if (found.row_filter, found.columns) != (member.row_filter, member.columns):
        return "somebody changed its row filter or its columns in the publication"
    return "somebody took it out of the publication and in again"
