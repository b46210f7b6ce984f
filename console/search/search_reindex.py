"""``pgsluice search reindex``: tables are copied again, and a search worker fills new indexes with them.

The copy is the group's, as with ``pgsluice tables resync``: each of its workers handles it in its own way.
"""

from __future__ import annotations

import asyncio

from pgsluice.console.tables import TableWish, bucket_of, order
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.config.settings import GroupSettings
from pgsluice.shared.errors import UsageError


def reindex(settings: GroupSettings, tables: tuple[str, ...], worker: str, *, all_workers: bool, wait_s: float | None) -> None:
    """Raises UsageError when ``worker`` is not in the group, or is not the only one without ``all_workers``; else as
    ``order``."""
    asyncio.run(_check(settings, worker, all_workers=all_workers))
    order(settings, TableWish.of("recopy", tables, without_copy=False, wait_s=wait_s))


async def _check(settings: GroupSettings, worker: str, *, all_workers: bool) -> None:
    async with bucket_of(settings) as bucket:
        workers = sorted(await read_reports(bucket))
    if worker not in workers:
        known = f"it has {', '.join(workers)}" if workers else "none has reported yet"
        raise UsageError(f"group '{settings.group}' has no worker '{worker}'", f"name it with --worker; {known}")
    others = [each for each in workers if each != worker]
    if others and not all_workers:
        raise UsageError(
            f"these workers of group '{settings.group}' would take the rows again, too: {', '.join(others)}",
            "a PostgreSQL target empties the table first, others send or write each row once more; where that may be, give "
            "--all-workers. 'pgsluice forget --worker' removes one that does not come back",
        )
