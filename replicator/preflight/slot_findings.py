"""Findings about what the group has at the source already, held against its record, and about what other groups left there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from pgsluice.replicator.source.publication import Publication, check_owner, find_publication
from pgsluice.replicator.source.slot import PLUGIN, ReplicationSlot, check_slot, find_slot
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.walsender import SystemIdentity
from pgsluice.replicator.start_checks import check_origin, check_publication, check_records, check_source
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.shared.wire.names import GroupNames

_LEFT: LiteralString = """
    SELECT s.slot_name::text AS slot, substr(obj_description(p.oid, 'pg_publication'), 16) AS named,
           pg_size_pretty(CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) END) AS kept
      FROM pg_replication_slots s LEFT JOIN pg_publication p ON p.pubname = s.slot_name
     WHERE s.database = current_database() AND starts_with(s.slot_name, 'pgsluice_') AND s.plugin = %(plugin)s
       AND NOT s.active AND NOT s.temporary AND s.slot_name <> %(slot)s
    UNION ALL
    SELECT NULL, substr(obj_description(p.oid, 'pg_publication'), 16), NULL
      FROM pg_publication p
     WHERE starts_with(obj_description(p.oid, 'pg_publication'), 'pgsluice group ') AND p.pubname <> %(publication)s
       AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = p.pubname)
     ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class _LeftObject:
    slot: str | None
    named: str | None
    kept: str | None


class GroupLook:
    """The group's objects at the source: ``slot`` and ``publication``, None for missing ones."""

    def __init__(self, settings: ReplicatorSettings, names: GroupNames, source: Source, facts: SourceFacts) -> None:
        self._settings = settings
        self._names = names
        self._source = source
        self._facts = facts
        self.slot: ReplicationSlot | None = None
        self.publication: Publication | None = None
        self.found = Findings(Subject.SOURCE)

    async def look(self) -> None:
        self.slot = await find_slot(self._source, self._names)
        self.publication = await find_publication(self._source, self._names)
        if self.publication is not None:
            with self.found.looking("source-publication-owner"):
                check_owner(self.publication, self._names)
            self._look_at_filters(self.publication)
        if self.slot is not None:
            self._look_at_slot(self.slot)
        self.found.take(await left_findings(self._source, self._names))

    def _look_at_slot(self, slot: ReplicationSlot) -> None:
        with self.found.looking("source-slot"):
            try:
                check_slot(slot, self._facts)
            except TransientError as error:
                self.found.note(
                    "source-slot-in-use",
                    Severity.INFO,
                    error.fact,
                    "no action is needed if the process is this group's replicator",
                )
        if slot.wal_status == "unreserved":
            fact = f"replication slot {slot.name} needs WAL that the source removes at its next checkpoint (unreserved)"
            self.found.note(
                "source-slot-at-risk", Severity.WARNING, fact, "start the replicator now; raise max_slot_wal_keep_size"
            )

    def _look_at_filters(self, publication: Publication) -> None:
        """Reports row filters and column lists of an administrator, which are easily forgotten."""
        limited = [table for table in publication.tables if table.row_filter or table.columns]
        if limited:
            shown = ", ".join(table.qualified_name for table in limited[:10])
            fact = f"publication {publication.name} sends some rows or columns only of {shown}"
            self.found.note("source-publication-filters", Severity.INFO, fact, "ALTER PUBLICATION … SET TABLE takes that back")

    async def compare(self, bucket: StateBucket, identity: SystemIdentity) -> None:
        """Compares with the group's records, as a start does (``start_checks``)."""
        settings, names, found = self._settings, self._names, self.found
        with found.looking("group-records"):
            await check_records(bucket, copies=settings.copy is not None)
        entry = await bucket.read(GROUP_KEY, GroupRecord) if await bucket.exists() else None
        bound = None if entry is None else entry.value
        with found.looking("group-source"):
            check_source(bound, names, identity, self._facts.database, self.slot)
        with found.looking("group-publication"):
            check_publication(bound, names, self.publication)
        if bound is not None:
            with found.looking("group-origin"):
                check_origin(bound, settings.origin, self._facts.major_version)


async def left_findings(source: Source, names: GroupNames) -> list[Finding]:
    """Returns findings about slots and publications of other groups without a reader."""
    parameters = {"plugin": PLUGIN, "slot": names.slot, "publication": names.publication}
    left: Sequence[_LeftObject] = await source.rows_of(_LeftObject, "finding objects that former groups left", _LEFT, parameters)
    return [_left_finding(each) for each in left]


def _left_finding(left: _LeftObject) -> Finding:
    group = left.named or (left.slot or "").removeprefix("pgsluice_")
    what = f"publication of group {group!r} has no slot" if left.slot is None else f"no client reads replication slot {left.slot}"
    kept = f", for which the source keeps {left.kept} of WAL" if left.kept else ""
    fact = f"{what}{kept}"
    remedy = f"start that group's replicator, or: pgsluice drop --source-only --group {group}"
    return Finding("source-left", Severity.WARNING, Subject.SOURCE, fact, remedy)
