"""``pgsluice run`` and ``pgsluice runs``: their flags, and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.settings import PipelineSettings, RunsSettings
from pgsluice.shared.errors import UsageError


@click.command()
@takes(PipelineSettings)
@click.argument("pipeline")
@click.option("--full", is_flag=True, help="Read all rows, whatever was read before; leave what is left of an earlier run")
@click.option("--wait", is_flag=True, help="Return when every worker of the pipeline's group has applied the rows")
@click.option("--dry-run", is_flag=True, help="Say what would be read, and read nothing")
@click.pass_context
def run(context: click.Context, pipeline: str, full: bool, wait: bool, dry_run: bool) -> None:
    """Read the rows of a PIPELINE's query into its group's stream: all of them, or those since the run before.

    A run that was interrupted, or failed, is taken up where it ended.
    """
    if wait and dry_run:
        raise UsageError("--wait and --dry-run are both given", "give one of them")
    settings = load_settings(context, PipelineSettings)
    from pgsluice.console.pipelines.pipeline_runs import run_pipeline, show_plan

    if dry_run:
        show_plan(settings, pipeline, full=full)
    else:
        run_pipeline(settings, pipeline, full=full, wait=wait)


@click.command()
@takes(RunsSettings)
@click.argument("pipeline", required=False)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each run instead of a table")
@click.pass_context
def runs(context: click.Context, pipeline: str | None, as_json: bool) -> None:
    """List the newest runs of the file's pipelines, or of one PIPELINE."""
    settings = load_settings(context, RunsSettings)
    from pgsluice.console.pipelines.pipeline_runs import list_runs

    list_runs(settings, pipeline, as_json=as_json)
