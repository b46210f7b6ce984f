"""The tables that a group would publish, as the source's catalog describes them now."""

from __future__ import annotations

import asyncio

from replicator.snapshot.catalog import describe_tables, fold_partitions
from replicator.source import Source
from replicator.tables import select_tables
from shared.names import GroupNames
from shared.settings import SourceTablesSettings
from shared.table import Table


def load_source_tables(settings: SourceTablesSettings) -> list[Table]:
    """Raises UsageError for tables that are not there, TransientError when the source does not answer."""
    return asyncio.run(_load(settings))


async def _load(settings: SourceTablesSettings) -> list[Table]:
    source = await Source.connect(settings.source)
    try:
        facts = await source.facts()
        selected = await fold_partitions(source, await select_tables(source, settings.tables, settings.schema))
        oids = [table.oid for table in selected]
        return await describe_tables(source, GroupNames(settings.group), oids, facts.major_version)
    finally:
        await source.close()
