"""The command ``worker`` with one subcommand for each registered sink, and ``module:Class`` for custom ones."""

from __future__ import annotations

import click

from pgsluice.console.flags import complete_help, load_values, option_help, takes
from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.own_class import declared_options, find_class
from pgsluice.worker.sinks.sink_registry import SINKS, CustomSinkSettings, default_name, find_sink, is_sink_class, load_sink


class SinkGroup(click.Group):
    """A group whose commands are the registered sinks; a name like ``module:Class`` makes a separate command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SINKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SINKS:
            return _sink_command(cmd_name)
        return _sink_class_command(cmd_name) if is_sink_class(cmd_name) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            sinks = ", ".join(self.list_commands(ctx))
            raise UsageError(f"there is no sink '{args[0]}'", f"the sinks are {sinks}; name a custom one as module:Class")
        return super().resolve_command(ctx, args)


@click.group(cls=SinkGroup)
@takes(WorkerSettings)
def worker() -> None:
    """Apply a group's changes to one of the sinks below, or to your own sink, named as module:Class.

    You can also give the options after the sink's name.
    """


def _sink_command(kind: str) -> click.Command:
    sink = find_sink(kind)

    @click.command(kind, help=sink.help, short_help=sink.summary)
    @takes(WorkerSettings, sink.settings)
    @click.pass_context
    def registered(context: click.Context) -> None:
        values = load_values(context, WorkerSettings, sink.settings)
        settings = config.make(sink.settings, values)
        sink.check(settings)
        from pgsluice.worker.worker import run

        run(config.make(WorkerSettings, values).named(kind), lambda worker: sink.new_sink(worker, settings))

    complete_help(f"worker {kind}", registered)
    return registered


class SinkClassCommand(click.Command):
    """A command whose help lists the options that the class declares, each as a ``--sink-option``."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = declared_options(find_class("sink", str(self.name)))
        if options:
            with formatter.section("Options of the sink, each as --sink-option NAME=VALUE"):
                formatter.write_dl([(f"{option.name}={option.kind.value}", option_help(option)) for option in options])


def _sink_class_command(sink_class: str) -> click.Command:
    @click.command(sink_class, cls=SinkClassCommand, help=f"Apply the changes to the custom sink {sink_class}.")
    @takes(WorkerSettings, CustomSinkSettings)
    @click.pass_context
    def custom(context: click.Context) -> None:
        values = load_values(context, WorkerSettings, CustomSinkSettings)
        options = config.make(CustomSinkSettings, values).options
        from pgsluice.worker.worker import run

        settings = config.make(WorkerSettings, values).named(default_name(sink_class))
        run(settings, lambda worker: load_sink(sink_class, worker, options))

    return custom
