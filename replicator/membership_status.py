"""What ``pgsluice status`` says of a group's publication and of tables that are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replicator.membership import Break, Membership
from shared.state import PUBLICATION_KEY


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The record but for the tables themselves. ``tables`` counts them."""

    publication: str
    tables: int
    seen_at: str
    seen_lsn: str
    left: Sequence[Break]
    missing: Sequence[Break]
    partition_changes: Sequence[Break]
    unpublished: Sequence[str]


def membership_status(records: Mapping[str, Mapping[str, Any]]) -> MembershipStatus | None:
    """None before the first session. ``records`` is the whole state bucket."""
    if PUBLICATION_KEY not in records:
        return None
    membership = Membership.decode(records[PUBLICATION_KEY])
    return MembershipStatus(
        publication=membership.name,
        tables=len(membership.members),
        seen_at=membership.seen_at,
        seen_lsn=membership.seen_lsn,
        left=membership.left,
        missing=membership.missing,
        partition_changes=membership.partition_changes,
        unpublished=membership.unpublished,
    )


def format_membership(status: MembershipStatus) -> Iterator[str]:
    """One line for the publication, and one for each thing that is not as it should be."""
    yield f"publication  {status.publication}: {status.tables} tables, looked at {status.seen_at[:19]}, {status.seen_lsn}"
    for entry in status.missing:
        yield f"    MISSING  changes of {entry.qualified_name} since {entry.lsn} ({entry.at[:19]}): {entry.reason}"
    for entry in status.left:
        yield f"    left     {entry.qualified_name} is not replicated since {entry.lsn} ({entry.at[:19]}): {entry.reason}"
    for entry in status.partition_changes:
        yield f"    changed  {entry.qualified_name}: {entry.reason} ({entry.at[:19]}); --recopy brings the table up to date"
    for name in status.unpublished:
        yield f"    new      {name} is not replicated"
