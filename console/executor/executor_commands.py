"""``pgsluice schedule``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes, variables_given
from pgsluice.shared.pipelines.pipeline_settings import ScheduleSettings


@click.command()
@takes(ScheduleSettings)
@click.pass_context
def schedule(context: click.Context) -> None:
    """Run SQL pipelines on their schedules and on request, until you stop it.

    Several such processes can serve the same pipelines: one at a time is responsible for a pipeline, and another takes over
    when it ends. 'pgsluice server --run' does the same.
    """
    settings = load_settings(context, ScheduleSettings)
    from pgsluice.console.executor.scheduling import run

    run(settings, variables_given(context))
