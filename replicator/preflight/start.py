"""The checks of a replicator's start, made before anything is created: all errors are reported at once.

The group's existing objects and records are compared afterwards (``start_checks``, ``group_start``): that needs the
broker's streams.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pgsluice.replicator.definitions.capture import missing_capture
from pgsluice.replicator.definitions.installation import Installation
from pgsluice.replicator.definitions.owners import owner_errors
from pgsluice.replicator.membership.joining import Wishes
from pgsluice.replicator.membership.membership import Membership, load_membership
from pgsluice.replicator.membership.wanted_tables import WantedTables, find_wanted
from pgsluice.replicator.preflight.table_findings import KEYLESS, keyless_findings
from pgsluice.replicator.source.publication import check_creation, check_fit, creation, find_publication
from pgsluice.replicator.source.slot import SlotNeeds, check_failover, free_slot_findings
from pgsluice.replicator.source.source import Source, SourceFacts, fitness
from pgsluice.replicator.source.tables import SourceTable, check_publisher, identity_errors
from pgsluice.replicator.start_checks import check_origin
from pgsluice.shared import telemetry
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.replicator_records import GROUP_KEY, GroupRecord
from pgsluice.shared.broker.table_selection import load_selection
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject, raise_errors
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

log = telemetry.logger(__name__)


def streams(settings: ReplicatorSettings) -> bool:
    """Returns whether changes are published, or only existing rows."""
    return settings.copy is None or settings.copy.then_stream


async def check_start(settings: ReplicatorSettings, names: GroupNames, source: Source, bucket: StateBucket) -> SourceFacts:
    """Raises UsageError or TerminalError with everything that hinders this group at this source."""
    facts = await source.facts()
    if await is_bound_elsewhere(names, source, facts, bucket):
        raise_errors(fitness(facts), "the source")  # the tables of another database mean nothing: start_checks refuses it
        return facts
    membership = await load_membership(bucket) if await bucket.exists() else None
    look = SourceCheck(settings, names, source, facts)
    wanted = await look.tables(Wishes.of(settings, await load_selection(bucket)), membership)
    raise_errors(look.found if wanted is None else await look.all_of(wanted.tables, membership), "the source")
    for finding in look.found:
        if finding.check == KEYLESS:
            log.warning("updates of a table will be slow at the target", fact=finding.fact, remedy=finding.remedy)
    return facts


async def is_bound_elsewhere(names: GroupNames, source: Source, facts: SourceFacts, bucket: StateBucket) -> bool:
    """Returns whether the group was started with another source, or with another publication."""
    entry = await bucket.read(GROUP_KEY, GroupRecord) if await bucket.exists() else None
    if entry is None:
        return False
    here = (await source.system_id(), facts.database, names.publication)
    return (entry.value.system_id, entry.value.database, entry.value.publication) != here


class SourceCheck:
    """One check of the conditions of a start. ``found`` grows with each step; a step without its precondition checks
    nothing."""

    def __init__(self, settings: ReplicatorSettings, names: GroupNames, source: Source, facts: SourceFacts) -> None:
        self._settings = settings
        self._names = names
        self._source = source
        self._facts = facts
        self.found = Findings(Subject.SOURCE)
        self._patterns: Sequence[TablePattern] = ()
        self._operations: Collection[str] = settings.publish

    async def tables(self, wishes: Wishes, membership: Membership | None) -> WantedTables | None:
        """Returns the tables that the group asks for; None if unknown."""
        if streams(self._settings):
            self.found.take(fitness(self._facts))
        self._patterns = wishes.patterns
        with self.found.looking("source-tables"):
            wanted = await find_wanted(self._source, self._names, wishes, membership, self._settings.publish)
            self._operations = wanted.operations
            self.found.take(Finding.of(error, "source-table", Subject.SOURCE) for error in wanted.absent)
            return wanted
        return None

    async def all_of(self, tables: Collection[SourceTable], membership: Membership | None) -> Findings:
        """Returns ``found``, with the findings about these tables. ``membership`` exists in a group that has streamed."""
        if not streams(self._settings):
            return self.found
        settings, facts = self._settings, self._facts
        needs = SlotNeeds(streams=True, copies=settings.copy is not None)
        self.found.take(await free_slot_findings(self._source, facts, self._names, needs))
        with self.found.looking("source-origin"):
            check_origin(None, settings.origin, facts.major_version)
        if settings.failover:
            with self.found.looking("source-failover"):
                check_failover(facts)
        identity = identity_errors(tables, self._operations, self._names.publication)
        self.found.take(Finding.of(error, "source-replica-identity", Subject.SOURCE) for error in identity)
        self.found.take(await keyless_findings(self._source, tables, settings.publish))
        await self._look_at_publication(list(tables), membership)
        if settings.track_ddl:
            await self._look_at_capture()
        return self.found

    async def _look_at_capture(self) -> None:
        errors = await owner_errors(self._source, self._names)
        for error in errors:
            choices = tuple(error.statements)  # who trusts what a stranger had in his hands has looked at it
            self.found.note("source-capture-owner", Severity.ERROR, error.fact, error.remedy, choices=choices)
        installation = Installation(self._names, self._patterns, self._facts.user)
        missing = None if errors else await missing_capture(self._source, installation)
        if missing is not None:
            fact, remedy = missing
            statements = tuple(installation.statements())
            self.found.note("source-capture", Severity.WARNING, fact, remedy, statements=statements)

    async def _look_at_publication(self, tables: list[SourceTable], membership: Membership | None) -> None:
        publication = await find_publication(self._source, self._names)
        if publication is None:
            await self._look_at_creation(tables, membership)
        elif publication.is_made_by(self._names) and (membership is None or self._settings.copy is not None):
            # a group that only streams leaves out what joins by a pattern
            joining = [table for table in tables if table.oid not in publication.oids]
            with self.found.looking("source-privileges"):
                await check_publisher(self._source, joining, creates=False)
        elif self._names.chosen_publication:
            with self.found.looking("source-publication"):
                check_fit(publication, tables)

    async def _look_at_creation(self, tables: list[SourceTable], membership: Membership | None) -> None:
        """Checks the creation of a missing publication; if a group had one before, ``start_checks`` reports it missing."""
        if not tables or membership is not None:
            return
        if self._names.chosen_publication:
            statement = creation(self._names, tables, self._settings.publish).as_string()
            fact = f"publication {self._names.publication} does not exist"
            remedy = f"let an administrator run: {statement}"
            self.found.note("source-publication", Severity.ERROR, fact, remedy, statements=(statement,))
            return
        with self.found.looking("source-privileges"):
            await check_creation(self._source, self._names, tables, self._settings.publish)
