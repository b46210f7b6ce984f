"""Findings about pipelines: their files, the places that they name, and the answers of their sources."""

from __future__ import annotations

from nats.aio.client import Client

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog
from pgsluice.replicator.preflight.query_findings import query_findings, role_findings
from pgsluice.shared.config.connections import NatsSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings, ReadingSettings
from pgsluice.shared.preflight.finding import Finding, Severity, Subject


async def pipeline_findings(
    settings: CatalogSettings, nats: NatsSettings | None, own: ReadingSettings | None, client: Client | None
) -> list[Finding]:
    """Returns findings; never raises for an error that it finds. ``client`` is None if NATS does not answer."""
    if client is None or nats is None:
        fact = "pipelines were not looked at: those that are documents are in NATS, which is not there"
        return [Finding("pipelines-unknown", Severity.INFO, Subject.PIPELINES, fact, "check again with NATS")]
    catalog = PipelineCatalog(settings, nats, own, ControlBucket(client))
    try:
        listed = await catalog.all()
    except PgsluiceError as error:
        return [Finding.of(error, "pipelines-files", Subject.PIPELINES)]
    found: list[Finding] = []
    looked: list[object] = []
    for each in listed:
        try:
            runnable = await catalog.find(each.name) if each.problem is None else None
            if each.problem is not None:
                raise each.problem
        except PgsluiceError as error:
            found.append(Finding.of(error, "pipeline-refused", Subject.PIPELINES))
            continue
        assert runnable is not None
        found += await query_findings(runnable.settings, runnable.pipeline, client)
        source = runnable.settings.source
        if source not in looked:
            looked.append(source)
            name = runnable.pipeline.source
            found += await role_findings(source, f"source '{name}'" if name else "the source of pipelines")
    return found
