"""The tables that a group would publish, as the source's catalog describes them now."""

from __future__ import annotations

import asyncio

from replicator.group_publication import select_group_tables
from replicator.snapshot.catalog import describe_tables
from replicator.source import Source
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
        names = GroupNames(settings.group, settings.publication)
        selected = await select_group_tables(source, names, settings.tables, settings.schema)
        return await describe_tables(source, names, [table.oid for table in selected], facts.major_version)
    finally:
        await source.close()
