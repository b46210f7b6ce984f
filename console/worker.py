"""The command ``worker`` with one subcommand for each sink, and ``module:Class`` for those that others wrote."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_values, takes
from pgsluice.shared import config
from pgsluice.shared.config.options import Role
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.start import is_output_closed
from pgsluice.worker.sinks.sink_class import default_name, is_sink_class, load_sink


class SinkGroup(click.Group):
    """A group whose commands are sinks; a name like ``module:Class`` makes a command of its own."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _sink_class_command(cmd_name) if is_sink_class(cmd_name) else super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            sinks = ", ".join(self.list_commands(ctx))
            raise UsageError(f"there is no sink '{args[0]}'", f"the sinks are {sinks}; name one of your own as module:Class")
        return super().resolve_command(ctx, args)


@click.group(cls=SinkGroup)
@takes(Role.WORKER)
def worker() -> None:
    """Apply a group's changes to a sink: one of those below, or a sink of your own, named as module:Class.

    The options below can also be given behind the sink's name.
    """


@worker.command(short_help="Write one JSON line for each change to standard output.")
@takes(Role.WORKER, Role.STDOUT)
@click.pass_context
def stdout(context: click.Context) -> None:
    """Write one JSON line for each change to standard output, in commit order."""
    values = load_values(context, Role.WORKER, Role.STDOUT)
    settings = config.worker_settings(values, "stdout")
    if is_output_closed():
        raise UsageError("standard output is closed, and the stdout sink has nowhere else to write", "redirect it or pipe it on")
    from pgsluice.worker.sinks.lines.line_shape import LineShape
    from pgsluice.worker.sinks.stdout.sink import StdoutSink
    from pgsluice.worker.worker import run

    shape = LineShape(config.line_shape(values))
    run(settings, lambda worker: StdoutSink(worker, values.switch("transactions"), shape=shape))


@worker.command(short_help="Apply the changes to a PostgreSQL database.")
@takes(Role.WORKER, Role.POSTGRES)
@click.pass_context
def postgres(context: click.Context) -> None:
    """Apply the changes to a PostgreSQL database, from one source commit to a later one in one transaction."""
    values = load_values(context, Role.WORKER, Role.POSTGRES)
    settings = config.worker_settings(values, "postgres")
    from pgsluice.worker.sinks.postgres import PostgresSink
    from pgsluice.worker.worker import run

    run(settings, lambda worker: PostgresSink(worker, config.postgres_sink_settings(values)))


@worker.command(short_help="Write the changes to files: JSON lines or Parquet.")
@takes(Role.WORKER, Role.FILE)
@click.pass_context
def file(context: click.Context) -> None:
    """Write the changes to files in a directory, in commit order and exactly once, as JSON lines or Parquet."""
    values = load_values(context, Role.WORKER, Role.FILE)
    settings = config.worker_settings(values, "file")
    from pgsluice.worker.sinks.file import FileSink
    from pgsluice.worker.worker import run

    run(settings, lambda worker: FileSink(worker, config.file_sink_settings(values)))


@worker.command(short_help="Post the changes to a webhook.")
@takes(Role.WORKER, Role.WEBHOOK)
@click.pass_context
def webhook(context: click.Context) -> None:
    """Post the changes as JSON to a URL, each key's in order."""
    values = load_values(context, Role.WORKER, Role.WEBHOOK)
    settings = config.worker_settings(values, "webhook")
    from pgsluice.worker.sinks.webhook import WebhookSink
    from pgsluice.worker.sinks.webhook.receiver import check_receiver
    from pgsluice.worker.worker import run

    webhook = config.webhook_sink_settings(values)
    check_receiver(webhook)
    run(settings, lambda worker: WebhookSink(worker, webhook))


def _sink_class_command(sink_class: str) -> click.Command:
    @click.command(sink_class, help=f"Apply the changes to the sink that {sink_class} makes.")
    @takes(Role.WORKER, Role.CUSTOM)
    @click.pass_context
    def custom(context: click.Context) -> None:
        values = load_values(context, Role.WORKER, Role.CUSTOM)
        settings = config.worker_settings(values, default_name(sink_class))
        from pgsluice.worker.worker import run

        run(settings, lambda worker: load_sink(sink_class, worker, values.pairs("sink-option")))

    return custom
