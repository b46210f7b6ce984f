"""All checks of ``pgsluice check`` at the source. Nothing is created, altered or locked: the session is read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg import sql

from pgsluice.replicator.membership.joining import Wishes
from pgsluice.replicator.membership.membership import load_membership
from pgsluice.replicator.preflight.load_findings import (
    connection_findings,
    instance_findings,
    size_findings,
    transaction_findings,
)
from pgsluice.replicator.preflight.server_findings import emitting_findings, server_findings
from pgsluice.replicator.preflight.slot_findings import GroupLook
from pgsluice.replicator.preflight.start import SourceCheck, is_bound_elsewhere, streams
from pgsluice.replicator.preflight.table_findings import table_findings, unlogged_findings
from pgsluice.replicator.source.catalog import describe_tables
from pgsluice.replicator.source.slot import SlotNeeds
from pgsluice.replicator.source.source import Source, SourceFacts
from pgsluice.replicator.source.tables import SourceTable, named_unlogged
from pgsluice.replicator.source.user_types import read_user_types
from pgsluice.replicator.source.walsender import SystemIdentity, WalSender
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.table_selection import NO_SELECTION, load_selection
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.postgres.session_settings import is_unverified, unverified_fact, unverified_remedy
from pgsluice.shared.preflight.clock import clock_findings
from pgsluice.shared.preflight.database import DatabaseIdentity, DatabaseLocale, UserType
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table


@dataclass(slots=True)
class ExaminedSource:
    """The findings, and the facts for the checks of the target and the rules: None or empty if they could not be read.
    ``identity`` is the server's and the database's."""

    findings: list[Finding]
    tables: Sequence[Table] | None = None
    types: Sequence[UserType] = ()
    locale: DatabaseLocale | None = None
    identity: DatabaseIdentity | None = None


async def examine_source(settings: ReplicatorSettings, bucket: StateBucket | None) -> ExaminedSource:
    """``bucket`` is the group's, None where NATS was not to be had: then nothing is held against what the group is bound to."""
    found = Findings(Subject.SOURCE)
    examined = ExaminedSource([])
    if is_unverified(settings.source):
        found.note("source-unverified", Severity.WARNING, unverified_fact("source"), unverified_remedy(""))
    try:
        source = await Source.connect(settings.source)
        try:
            await _SourceExamination(settings, source, bucket, found, examined).run()
        finally:
            await source.close()
    except PgsluiceError as error:
        found.take([Finding.of(error, "source-connection", Subject.SOURCE)])
    examined.findings = list(found)
    return examined


class _SourceExamination:
    def __init__(
        self,
        settings: ReplicatorSettings,
        source: Source,
        bucket: StateBucket | None,
        found: Findings,
        examined: ExaminedSource,
    ) -> None:
        self._settings = settings
        self._source = source
        self._bucket = bucket
        self._found = found
        self._examined = examined
        self._names = GroupNames(settings.group, settings.publication)
        self._copies = settings.copy is not None
        self._copying = settings.copy.connections if settings.copy is not None else 0

    async def run(self) -> None:
        await self._source.execute("starting the checks", sql.SQL("SET default_transaction_read_only = on").format())
        with self._found.looking("source-version"):
            await self._look(await self._source.facts())

    async def _look(self, facts: SourceFacts) -> None:
        identity = await self._replication_connection(facts)
        await self._look_at_group(facts, identity)
        await self._look_at_tables(facts)
        needs = SlotNeeds(streams(self._settings), self._copies)
        settings, source, found = self._settings, self._source, self._found
        found.take(await server_findings(source, facts, self._names.slot, needs, failover=settings.failover))
        if settings.track_ddl and streams(settings):
            found.take(await emitting_findings(source, self._names))
        found.take(await transaction_findings(source))
        found.take(await connection_findings(source, facts, self._copying))
        if self._copies:
            found.take(await instance_findings(settings.source, self._copying))
        found.take(await self._clock())
        self._examined.identity = await source.identity()
        self._examined.locale = await source.locale()

    async def _replication_connection(self, facts: SourceFacts) -> SystemIdentity | None:
        """Returns None if there is no such connection: an ordinary one works, so a proxy or a missing right blocks this
        one."""
        if not streams(self._settings) or not facts.may_replicate:
            return None
        try:
            walsender = await WalSender.connect(self._settings.source, self._names.slot)
            try:
                return await walsender.identify()
            finally:
                await walsender.close()
        except PgsluiceError as error:
            remedy = f"{error.remedy}; connect to the server itself: a pooler (PgBouncer, RDS Proxy) carries no replication"
            self._found.note("source-replication-connection", Severity.ERROR, error.fact, remedy)
            return None

    async def _look_at_group(self, facts: SourceFacts, identity: SystemIdentity | None) -> None:
        if not streams(self._settings):
            return
        group = GroupLook(self._settings, self._names, self._source, facts)
        await group.look()
        if self._bucket is not None and identity is not None:
            await group.compare(self._bucket, identity)
        self._found.take(group.found)

    async def _look_at_tables(self, facts: SourceFacts) -> None:
        bucket = self._bucket
        if bucket is not None and await is_bound_elsewhere(self._names, self._source, facts, bucket):
            return
        membership = await load_membership(bucket) if bucket is not None and await bucket.exists() else None
        selection = NO_SELECTION if bucket is None else await load_selection(bucket)
        wishes = Wishes.of(self._settings, selection)
        look = SourceCheck(self._settings, self._names, self._source, facts)
        wanted = await look.tables(wishes, membership)
        if wanted is None:
            self._found.take(look.found)
            return
        tables = [*wanted.tables, *await named_unlogged(self._source, wishes.patterns)]
        self._found.take(await look.all_of(tables, membership))
        self._found.take(Finding.of(error, "source-table", Subject.SOURCE, Severity.WARNING) for error in wanted.absent_added)
        self._found.take(Finding.of(error, "source-table", Subject.SOURCE, Severity.WARNING) for _, error in wanted.unfit)
        self._found.take(await unlogged_findings(self._source, wishes.patterns))
        await self._look_into(tables, facts)

    async def _look_into(self, tables: Sequence[SourceTable], facts: SourceFacts) -> None:
        source, names, found = self._source, self._names, self._found
        found.take(await table_findings(source, facts, names, tables, copies=self._copies))
        found.take(await size_findings(source, tables, copies=self._copies))
        self._examined.tables = await describe_tables(source, names, [table.oid for table in tables], facts.major_version)
        self._examined.types = await read_user_types(source, self._examined.tables)

    async def _clock(self) -> list[Finding]:
        asked = datetime.now(UTC)
        [(told,)] = await self._source.rows("asking for the time", "SELECT clock_timestamp()")
        return clock_findings(Subject.SOURCE, asked, told, datetime.now(UTC))
