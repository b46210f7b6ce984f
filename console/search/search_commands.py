"""``pgsluice search``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.console.table_commands import gives_order
from pgsluice.shared.config.settings import GroupSettings


@click.group()
@takes(GroupSettings)
def search() -> None:
    """What concerns the indexes of a search worker."""


@search.command("reindex", short_help="Fill new indexes, which take over when they are whole.")
@gives_order
@click.option("--worker", default="search", metavar="NAME", help="The search worker's name (default search)")
@click.option("--all-workers", is_flag=True, help="Although other workers of the group take the rows again, too")
def search_reindex(
    context: click.Context, named: tuple[str, ...], worker: str, all_workers: bool, wait_s: float, no_wait: bool
) -> None:
    """Copy each TABLE again, into a new index with the mapping that it would have now.

    Searches find the old index until the new one is whole. The copy is the group's: each of its workers takes the rows again, and
    a PostgreSQL target empties the table first. So this is refused where a group has other workers; give a search worker a group
    of its own.
    """
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.search.search_reindex import reindex

    reindex(settings, named, worker, all_workers=all_workers, wait_s=None if no_wait else wait_s)
