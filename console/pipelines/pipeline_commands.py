"""``pgsluice run``, ``runs`` and ``steps``: their flags, and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.pipeline_settings import RunPipelineSettings, RunsSettings, StepsSettings


@click.command()
@takes(RunPipelineSettings, shown=("config", "nats-url", "pipelines-config", "source-url", "host", "dbname", "user"))
@click.argument("pipeline")
@click.option("--full", is_flag=True, help="Read all rows, regardless of earlier runs; abandon an unfinished run")
@click.option("--wait", is_flag=True, help="Return when every worker of the pipeline's group has applied the rows")
@click.option("--dry-run", is_flag=True, help="Show the planned read, and read nothing")
@click.option("--reconcile", is_flag=True, help="Then delete rows at the target that the query no longer returns")
@click.option("--force", is_flag=True, help="With --reconcile: delete any number of rows")
@click.option("--request", default="", hidden=True, help="Request that an executor carries out")
@click.pass_context
def run(
    context: click.Context, pipeline: str, full: bool, wait: bool, dry_run: bool, reconcile: bool, force: bool, request: str
) -> None:
    """Read the rows of a PIPELINE's query into its group's stream: all rows, or the rows since the previous run.

    If the previous run was interrupted or paused, or failed, this command continues it.
    """
    if dry_run and (wait or reconcile):
        raise UsageError(f"--{'wait' if wait else 'reconcile'} and --dry-run are both given", "give one of them")
    settings = load_settings(context, RunPipelineSettings)
    from pgsluice.console.pipelines.pipeline_runs import run_pipeline, show_plan

    if dry_run:
        show_plan(settings, pipeline, full=full)
    else:
        run_pipeline(settings, pipeline, full=full, wait=wait, request=request, reconcile=reconcile, force=force)


@click.group(invoke_without_command=True)
@takes(RunsSettings)
@click.pass_context
def runs(context: click.Context) -> None:
    """Show the newest runs of the file's pipelines, or pause, resume or cancel a current run on any machine."""
    if context.invoked_subcommand is None:
        context.invoke(runs_list, pipeline=None, as_json=False)


@runs.command("list", short_help="List runs, the newest first.")
@takes(RunsSettings)
@click.argument("pipeline", required=False)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each run instead of a table")
@click.pass_context
def runs_list(context: click.Context, pipeline: str | None, as_json: bool) -> None:
    """List the newest runs of all pipelines, or of one PIPELINE."""
    settings = load_settings(context, RunsSettings)
    from pgsluice.console.pipelines.pipeline_runs import list_runs

    list_runs(settings, pipeline, as_json=as_json)


@runs.command("pause", short_help="Pause a run at its next message.")
@takes(RunsSettings)
@click.argument("pipeline")
@click.pass_context
def runs_pause(context: click.Context, pipeline: str) -> None:
    """Pause the current run of PIPELINE at its next message, and begin no other run before 'resume'."""
    _wish(context, "pause", pipeline)


@runs.command("resume", short_help="Resume a paused run.")
@takes(RunsSettings)
@click.argument("pipeline")
@click.pass_context
def runs_resume(context: click.Context, pipeline: str) -> None:
    """Resume the paused run of PIPELINE in its executor. Without an executor, start 'pgsluice run' to continue it."""
    _wish(context, "resume", pipeline)


@runs.command("cancel", short_help="Cancel a run; the next run begins at the checkpoint.")
@takes(RunsSettings)
@click.argument("pipeline")
@click.pass_context
def runs_cancel(context: click.Context, pipeline: str) -> None:
    """Cancel the current or unfinished run of PIPELINE. Workers still apply its rows in the stream; the next run begins at
    the checkpoint."""
    _wish(context, "cancel", pipeline)


def _wish(context: click.Context, verb: str, pipeline: str) -> None:
    settings = load_settings(context, RunsSettings)
    from pgsluice.console.pipelines.pipeline_runs import wish

    wish(settings, pipeline, verb)


@click.group()
@takes(StepsSettings)
def steps() -> None:
    """Test the steps of SQL pipelines."""


@steps.command("test", short_help="Show the output of steps for a file's rows, and errors.")
@takes(StepsSettings)
@click.argument("pipeline")
@click.option(
    "--input", "path", required=True, metavar="FILE", help="File with rows of the pipeline's query, one JSON object per line"
)
@click.option(
    "--type",
    "typed",
    multiple=True,
    metavar="COLUMN=TYPE",
    help="Type of a column, if JSON does not show it, like stars=numeric(12,2)",
)
@click.pass_context
def steps_test(context: click.Context, pipeline: str, path: str, typed: tuple[str, ...]) -> None:
    """Show the output of the steps of PIPELINE for rows, without any server. Exits with 70 if a step fails on a row, returns
    different rows the second time, or returns different rows when it receives each row alone.

    The steps' modules are imported into this process, even if no administrator has allowed them.
    """
    settings = load_settings(context, StepsSettings)
    types = dict(each.split("=", 1) for each in typed if "=" in each)
    if len(types) != len(typed):
        raise UsageError("--type is not COLUMN=TYPE, or there is one column twice", "write it like stars=numeric(12,2)")
    from pgsluice.console.pipelines.step_trial import try_steps

    try_steps(settings, pipeline, path, types)
