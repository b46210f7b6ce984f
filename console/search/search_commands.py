"""``pgsluice search``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.console.table_commands import gives_order
from pgsluice.shared.config.settings import GroupSettings


@click.group()
@takes(GroupSettings)
def search() -> None:
    """Rebuild the indexes of a search worker."""


@search.command("reindex", short_help="Fill new indexes, which take over when they are complete.")
@gives_order
@click.option("--worker", default="search", metavar="NAME", help="Name of the search worker (default search)")
@click.option("--all-workers", is_flag=True, help="Allow it although other workers of the group receive the rows again, too")
def search_reindex(
    context: click.Context, named: tuple[str, ...], worker: str, all_workers: bool, wait_s: float, no_wait: bool
) -> None:
    """Copy each TABLE again, into a new index with the current mapping.

    Searches use the old index until the new one is complete. The copy is for the whole group: each of its workers receives
    the rows again, and a PostgreSQL target empties the table first. Therefore the command is refused if the group has other
    workers; use a separate group for a search worker.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.search.search_reindex import reindex

    reindex(settings, named, worker, all_workers=all_workers, wait_s=None if no_wait else wait_s)
