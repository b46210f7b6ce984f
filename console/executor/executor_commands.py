"""``pgsluice schedule``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes, variables_given
from pgsluice.shared.pipelines.pipeline_settings import ScheduleSettings


@click.command()
@takes(ScheduleSettings)
@click.pass_context
def schedule(context: click.Context) -> None:
    """Run SQL pipelines by their schedules, and those that people ask for, until it is stopped.

    Several may do so for the same pipelines: each pipeline has one at a time, and another goes on when that one ends.
    'pgsluice server --run' does the same.
    """
    settings = load_settings(context, ScheduleSettings)
    from pgsluice.console.executor.scheduling import run

    run(settings, variables_given(context))
