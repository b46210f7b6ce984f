"""One check: broker, source, rules, sinks, in the order in which each helps the next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence

from pgsluice.console.check.check_settings import CheckParts
from pgsluice.console.check.machine import machine_findings
from pgsluice.console.check.pipeline_look import pipeline_findings
from pgsluice.console.check.report import CheckReport
from pgsluice.console.check.rule_findings import RuleLook
from pgsluice.console.check.script import scripts
from pgsluice.console.check.selection import CheckSelection
from pgsluice.replicator.preflight.source_preflight import ExaminedSource, examine_source
from pgsluice.shared.broker.broker_findings import ExaminedBroker, examined_broker
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.preflight.finding import Finding, Subject
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.incoming import Incoming


def run(parts: CheckParts, selection: CheckSelection, *, as_json: bool, as_sql: bool) -> int:
    """Writes to standard output; returns the exit code."""
    report = examine(parts, selection)
    if as_sql:
        sys.stdout.writelines(f"{line}\n" for line in scripts(report))
    elif as_json:
        sys.stdout.write(report.encode().decode())
    else:
        sys.stdout.writelines(f"{line}\n" for line in report.lines())
        if any(finding.statements for finding in report.findings):
            sys.stdout.write("The SQL alone, to run as an administrator: the same command with --sql\n")
    return report.exit_code


def examine(parts: CheckParts, selection: CheckSelection) -> CheckReport:
    """Never raises for what it finds."""
    return asyncio.run(examined(parts, selection))


async def examined(parts: CheckParts, selection: CheckSelection) -> CheckReport:
    """Like ``examine``, for a caller in an event loop, who may cancel it."""
    findings: list[Finding] = []
    if selection.machine:
        findings += machine_findings(parts.worker.spark, os.environ)
    async with _broker(parts) as broker:
        if selection.nats:
            findings += broker.findings
        bucket = None if broker.client is None else StateBucket(broker.client, parts.names)
        source = await examine_source(parts.replicator, bucket) if _needs_source(parts, selection) else ExaminedSource([])
        if selection.source:
            findings += source.findings
        if selection.pipelines:
            findings += await pipeline_findings(parts.pipelines, parts.nats, parts.reading, broker.client)
        tables = source.tables if source.tables is not None else await _published(bucket)
    rules = RuleLook(parts.worker)
    rules.compare(tables)
    if selection.rules or (selection.sinks and rules.transformation is None):
        findings += rules.found
    incoming = _incoming(source, rules, tables)
    for kind in selection.sinks:
        sink = parts.sinks[kind]
        findings += await asyncio.to_thread(sink.kind.look, sink.worker, sink.settings, incoming)
    return CheckReport(parts.names.group, tuple(selection.subjects), _places(parts), tuple(dict.fromkeys(findings)))


@contextlib.asynccontextmanager
async def _broker(parts: CheckParts) -> AsyncIterator[ExaminedBroker]:
    """Whatever is asked for, if the configuration names it: the source is held against what the group is bound to."""
    if parts.nats is None:
        yield ExaminedBroker()
        return
    copies = parts.replicator.copy is not None
    async with examined_broker(parts.nats, parts.names, parts.replicator.stream, copies=copies) as broker:
        yield broker


def _needs_source(parts: CheckParts, selection: CheckSelection) -> bool:
    """Sinks and rules are held against its tables."""
    return parts.has_source and (selection.source or selection.rules or bool(selection.sinks))


async def _published(bucket: StateBucket | None) -> Sequence[Table] | None:
    """Returns the tables of the replicator's last start; None for a record that cannot be read."""
    if bucket is None:
        return None
    try:
        return await load_tables(bucket) if await bucket.exists() else None
    except PgsluiceError:
        return None


def _incoming(source: ExaminedSource, rules: RuleLook, tables: Sequence[Table] | None) -> Incoming:
    is_routed = rules.transformation is not None and bool(rules.transformation.routing.routes)
    return Incoming(
        tables=rules.destinations(tables),
        types=source.types,
        locale=source.locale,
        identity=source.identity,
        is_routed=is_routed,
        is_from_catalog=source.tables is not None,
    )


def _places(parts: CheckParts) -> dict[Subject, str]:
    places = {}
    if parts.has_source:
        places[Subject.SOURCE] = _place(parts.replicator.source)
    if "postgres" in parts.sinks:
        places[Subject.TARGET] = _place(parts.sinks["postgres"].settings.target)
    return places


def _place(settings: PostgresSettings) -> str:
    return f"{settings.host}:{settings.port or 5432}, database {settings.dbname}"
