"""Findings about a SQL pipeline and its source: what its run would refuse, and what has runs read more than they need.

No row of the query is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from nats.aio.client import Client

from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.pipeline_run import examine
from pgsluice.replicator.pipelines.source_role import ROLE_REMEDY, SourceRole, read_source_role
from pgsluice.replicator.source.source import Source
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.preflight.finding import Finding, Severity, Subject

LONG_S = 60.0

_OLDEST: LiteralString = """
    SELECT 'the transaction of pid ' || pid AS what, xact_start::text AS since,
           extract(epoch FROM statement_timestamp() - xact_start)::float8 AS age_s
      FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
       AND xact_start IS NOT NULL
     UNION ALL
    SELECT 'the prepared transaction ' || quote_literal(gid), prepared::text,
           extract(epoch FROM statement_timestamp() - prepared)::float8
      FROM pg_prepared_xacts WHERE database = current_database()
     ORDER BY age_s DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class _Holder:
    what: str
    since: str
    age_s: float


async def query_findings(settings: PipelineSettings, pipeline: Pipeline, client: Client) -> list[Finding]:
    """Returns what a run would refuse now. ``client`` serves only other parts of a run: nothing is written."""
    try:
        await examine(settings, pipeline, client)
    except PgsluiceError as error:
        return [Finding.of(error, "pipeline-query", Subject.PIPELINES)]
    return []


async def role_findings(settings: PostgresSettings, named: str) -> list[Finding]:
    """Returns the findings about a source that pipelines read; ``named`` begins sentences about it."""
    try:
        source = await Source.connect(settings)
    except PgsluiceError as error:
        return [Finding.of(error, "pipeline-source", Subject.PIPELINES)]
    try:
        role = await read_source_role(source)
        holders = await source.rows_of(_Holder, "looking for open transactions", _OLDEST)
    except PgsluiceError as error:
        return [Finding.of(error, "pipeline-source", Subject.PIPELINES)]
    finally:
        await source.close()
    return [*_strong(role, named), *(_open(each, named) for each in holders if each.age_s >= LONG_S)]


def _strong(role: SourceRole, named: str) -> list[Finding]:
    if not role.rights:
        return []
    fact = f"{named}: {role.in_words}, and the authors of pipelines choose the SQL that it runs"
    return [Finding("pipeline-role", Severity.WARNING, Subject.PIPELINES, fact, ROLE_REMEDY)]


def _open(holder: _Holder, named: str) -> Finding:
    fact = (
        f"{named}: {holder.what} is open since {holder.since}, so incremental runs read again from there, and append stops there"
    )
    return Finding("pipeline-window", Severity.WARNING, Subject.PIPELINES, fact, "let it end, or end it")
