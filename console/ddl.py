"""``pgsluice ddl``: the SQL for the capture of schema changes at a source, and the current definition of a table."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from pgsluice.replicator.definitions.capture import note_table
from pgsluice.replicator.definitions.installation import Installation, removal_script
from pgsluice.replicator.source.source import Source
from pgsluice.replicator.source.tables import parse_pattern, wanted_patterns
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import SourceTablesSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

log = telemetry.logger(__name__)


def write_sql(settings: SourceTablesSettings, *, has_triggers: bool) -> None:
    """Writes the script to standard output."""
    names = GroupNames(settings.group, settings.publication)
    patterns = wanted_patterns(settings.tables, settings.schema, settings.publication)
    sys.stdout.write(Installation(names, patterns, settings.source.user, has_triggers).script())


def write_removal(settings: SourceTablesSettings) -> None:
    """Writes the script that takes all of it away."""
    sys.stdout.write(removal_script(GroupNames(settings.group, settings.publication)))


def note(settings: SourceTablesSettings, tables: Sequence[str]) -> None:
    """Raises UsageError for what names no table, TerminalError when the functions are not at the source, TransientError when it
    does not answer."""
    patterns = [_named(text, settings.schema) for text in tables]
    asyncio.run(_note(settings, patterns))


def _named(text: str, schema: str) -> TablePattern:
    pattern = parse_pattern(text, schema)
    if not pattern.is_name:
        raise UsageError(f"{text!r} may be several tables", "name each of them")
    return pattern


async def _note(settings: SourceTablesSettings, tables: Sequence[TablePattern]) -> None:
    names = GroupNames(settings.group, settings.publication)
    source = await Source.connect(settings.source)
    try:
        for table in tables:
            await note_table(source, names, table)
            log.info("the table's definition is recorded", table=f"{table.schema}.{table.name}")
    finally:
        await source.close()
