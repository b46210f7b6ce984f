"""``pgsluice plan``, ``apply`` and ``export``: their flags and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import confirm, load_settings, takes
from pgsluice.shared.config.server_settings import DocumentSettings

_files = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Document; repeatable. -: standard input",
)


@click.command()
@takes(DocumentSettings)
@_files
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each document")
@click.pass_context
def plan(context: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """Show the changes that 'apply' would make. A document is a group's configuration file, with references in place of
    secrets.

    Exits with 0 if there are no changes, and with 1 if there are changes.
    """
    settings = load_settings(context, DocumentSettings)
    from pgsluice.console.documents.applied_files import show_plan

    context.exit(show_plan(settings, files, as_json=as_json))


@click.command()
@takes(DocumentSettings)
@_files
@click.option("--yes", is_flag=True, help="Do not ask for confirmation")
@click.pass_context
def apply(context: click.Context, files: tuple[str, ...], yes: bool) -> None:
    """Store documents, the desired configuration of groups, in NATS. 'pgsluice server --run' runs the groups with them; for
    other processes, write a file with 'pgsluice export'."""
    settings = load_settings(context, DocumentSettings)
    from pgsluice.console.documents.applied_files import apply_files, show_plan

    if not yes:
        if not show_plan(settings, files, as_json=False):
            return
        confirm("apply", "Apply this?")
    apply_files(settings, files)


@click.command()
@takes(DocumentSettings)
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.pass_context
def export(context: click.Context, groups: tuple[str, ...]) -> None:
    """Write the documents of the named groups, or of all groups, as YAML that 'apply' accepts."""
    settings = load_settings(context, DocumentSettings)
    from pgsluice.console.documents.applied_files import export_documents

    export_documents(settings, groups)
