"""``pgsluice run``, ``runs`` and ``steps``: their flags, and their help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.pipeline_settings import RunPipelineSettings, RunsSettings, StepsSettings


@click.command()
@takes(RunPipelineSettings, shown=("config", "nats-url", "pipelines-config", "source-url", "host", "dbname", "user"))
@click.argument("pipeline")
@click.option("--full", is_flag=True, help="Read all rows, whatever was read before; leave what is left of an earlier run")
@click.option("--wait", is_flag=True, help="Return when every worker of the pipeline's group has applied the rows")
@click.option("--dry-run", is_flag=True, help="Say what would be read, and read nothing")
@click.option("--reconcile", is_flag=True, help="Then delete rows at the target that the query gives no longer")
@click.option("--force", is_flag=True, help="With --reconcile: however many they are")
@click.option("--request", default="", hidden=True, help="The request that an executor carries out")
@click.pass_context
def run(
    context: click.Context, pipeline: str, full: bool, wait: bool, dry_run: bool, reconcile: bool, force: bool, request: str
) -> None:
    """Read the rows of a PIPELINE's query into its group's stream: all of them, or those since the run before.

    A run that was interrupted, paused, or failed, is taken up where it ended.
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
    """Show the newest runs of the file's pipelines, or pause, resume or cancel one that is in hand, wherever it runs."""
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


@runs.command("pause", short_help="End a run at its next message; it can go on.")
@takes(RunsSettings)
@click.argument("pipeline")
@click.pass_context
def runs_pause(context: click.Context, pipeline: str) -> None:
    """End the run of PIPELINE that is in hand at its next message, and begin none before 'resume'."""
    _wish(context, "pause", pipeline)


@runs.command("resume", short_help="Let a paused run go on.")
@takes(RunsSettings)
@click.argument("pipeline")
@click.pass_context
def runs_resume(context: click.Context, pipeline: str) -> None:
    """Let whoever executes PIPELINE go on where it was paused. Where nobody does, 'pgsluice run' goes on itself."""
    _wish(context, "resume", pipeline)


@runs.command("cancel", short_help="End a run for good, and read on from the checkpoint.")
@takes(RunsSettings)
@click.argument("pipeline")
@click.pass_context
def runs_cancel(context: click.Context, pipeline: str) -> None:
    """End the run of PIPELINE that is in hand, or left, for good. Its rows that are in the stream are applied; the next run
    begins at the checkpoint."""
    _wish(context, "cancel", pipeline)


def _wish(context: click.Context, verb: str, pipeline: str) -> None:
    settings = load_settings(context, RunsSettings)
    from pgsluice.console.pipelines.pipeline_runs import wish

    wish(settings, pipeline, verb)


@click.group()
@takes(StepsSettings)
def steps() -> None:
    """What concerns the steps of SQL pipelines."""


@steps.command("test", short_help="Show what steps make of a file's rows, and where they fail.")
@takes(StepsSettings)
@click.argument("pipeline")
@click.option("--input", "path", required=True, metavar="FILE", help="Rows of the pipeline's query, a JSON object on each line")
@click.option(
    "--type",
    "typed",
    multiple=True,
    metavar="COLUMN=TYPE",
    help="A column's type, where JSON does not tell, like stars=numeric(12,2)",
)
@click.pass_context
def steps_test(context: click.Context, pipeline: str, path: str, typed: tuple[str, ...]) -> None:
    """Show what the steps of PIPELINE make of rows, without any server. Exit code 70 when a step fails on a row, gives other rows
    the second time, or other ones when each row comes alone.

    The steps' modules are imported into this process, allowed by an administrator or not.
    """
    settings = load_settings(context, StepsSettings)
    types = dict(each.split("=", 1) for each in typed if "=" in each)
    if len(types) != len(typed):
        raise UsageError("--type is not COLUMN=TYPE, or there is one column twice", "write it like stars=numeric(12,2)")
    from pgsluice.console.pipelines.step_trial import try_steps

    try_steps(settings, pipeline, path, types)
