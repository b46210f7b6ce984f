"""The program ``pgsluice``: finds the command, runs it, and turns what it raises into a sentence and an exit code.

Exit codes: 0 done, 2 usage or configuration, 70 needs a person, 75 try again; 130 when interrupted at the terminal. A replicator
or worker that is stopped by a signal is done.

A command's module is imported when the command is chosen, by name, and its work when it runs: so no process loads what only
another command needs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from pgsluice.console.flags import takes_config
from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.process import start as process_start
from pgsluice.shared.process import stop_signals

INTERRUPTED = 130
"""What a shell reports for a process that SIGINT ended."""

_COMMANDS = {
    "up": ("pgsluice.console.up.up_command", "up", "Replicate at once, in one terminal."),
    "replicator": ("pgsluice.console.commands", "replicator", "Publish a database's changes to NATS JetStream."),
    "worker": ("pgsluice.console.worker", "worker", "Apply a group's changes to a sink."),
    "check": ("pgsluice.console.check.check_command", "check", "Find what is wrong before a start, with what cures it."),
    "status": ("pgsluice.console.commands", "status", "Show where a group's replicator and workers are."),
    "lag": ("pgsluice.console.commands", "lag", "Say whether the workers keep up, by the exit code."),
    "pause": ("pgsluice.console.units.unit_commands", "pause", "Let a group's workers rest between batches."),
    "resume": ("pgsluice.console.units.unit_commands", "resume", "Let go on what is paused."),
    "stop": ("pgsluice.console.units.unit_commands", "stop", "End a group's processes, and keep them stopped."),
    "start": ("pgsluice.console.units.unit_commands", "start", "Let processes be started that were stopped."),
    "tables": ("pgsluice.console.table_commands", "tables", "Show a group's tables, or have others while it runs."),
    "run": ("pgsluice.console.pipelines.pipeline_commands", "run", "Read a SQL pipeline's rows."),
    "schedule": ("pgsluice.console.executor.executor_commands", "schedule", "Run SQL pipelines by their schedules."),
    "runs": ("pgsluice.console.pipelines.pipeline_commands", "runs", "Show what became of a pipeline's runs."),
    "steps": ("pgsluice.console.pipelines.pipeline_commands", "steps", "Try a SQL pipeline's steps on rows of a file."),
    "search": ("pgsluice.console.search.search_commands", "search", "Fill the indexes of a search worker anew."),
    "dead": ("pgsluice.console.commands", "dead", "Show, replay or discard changes that were not applied."),
    "messages": ("pgsluice.console.inspect.inspect_commands", "messages", "Show what a group's change stream holds."),
    "trace": ("pgsluice.console.inspect.inspect_commands", "trace", "Show where a row is."),
    "subscriptions": (
        "pgsluice.console.subscriptions.subscription_commands",
        "subscriptions",
        "Show who is posted changes, and subscribe others.",
    ),
    "forget": ("pgsluice.console.commands", "forget", "Forget a worker that does not come back."),
    "rules": ("pgsluice.console.commands", "rules", "Check rules and routing files, and try them on changes."),
    "ddl": ("pgsluice.console.ddl_commands", "ddl", "Have the source tell of altered tables."),
    "nats": ("pgsluice.console.broker.broker_commands", "nats", "Print a group's NATS permissions, and create its streams."),
    "plan": ("pgsluice.console.documents.documents_command", "plan", "Show what applying documents would change."),
    "apply": ("pgsluice.console.documents.documents_command", "apply", "Say what groups are to be."),
    "export": ("pgsluice.console.documents.documents_command", "export", "Write what groups are to be as YAML."),
    "server": ("pgsluice.console.server.server_commands", "server", "Serve the REST API and the page."),
    "token": ("pgsluice.console.server.server_commands", "token", "Tokens that a server takes."),
    "spark-archive": ("pgsluice.console.commands", "spark_archive", "Make Spark start faster."),
    "drop": ("pgsluice.console.commands", "drop", "Remove everything a group made at the source and in NATS."),
}
"""Command → module, attribute, summary. The summary stands here so that ``--help`` imports none of them."""

_SERVICES = ("up", "replicator", "worker", "server", "schedule")
"""The commands that run until they are stopped."""


class LazyGroup(click.Group):
    """A group whose commands are imported when one is chosen."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        if cmd_name in _SERVICES:
            stop_signals.service()
        else:
            stop_signals.release()
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary) for name, (_, _, summary) in _COMMANDS.items()]
        rows += [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _version_option(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        _show_version()
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@takes_config
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version_option, help="Show the program's version."
)
def program() -> None:
    """Replicates PostgreSQL through NATS JetStream and transforms the data on the way.

    Every flag is also an environment variable (--nats-url: PGSLUICE_NATS_URL) and a key of the YAML file (nats-url:). The
    flag wins over the variable, the variable over the file, the file over the default.
    """


@program.command()
def version() -> None:
    """Show the program's version."""
    _show_version()


def _show_version() -> None:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        click.echo(f"pgsluice {installed_version('pgsluice')}")
    except PackageNotFoundError:
        raise TerminalError("the version is not known: pgsluice is not installed as a package", "pip install it") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command in ``arguments`` (default: the process's own) and ends the process with its exit code."""
    process_start.open_standard_streams()
    process_start.speak_utf8()
    process_start.leave_no_core()
    stop_signals.hold()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command in ``arguments`` and returns the exit code; what went wrong is on standard error by then."""
    try:
        return int(program.main(arguments, prog_name="pgsluice", standalone_mode=False) or 0)
    except PgsluiceError as error:
        telemetry.report_failure(str(error), error.exit_code)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return UsageError.exit_code
    except click.Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last frame of the program: a defect must end in the log and in an exit code
        telemetry.logger(__name__).exception("unexpected error", type=type(error).__name__)
        telemetry.report_failure("an unexpected error ended the program: see the traceback in the log", TerminalError.exit_code)
        return TerminalError.exit_code


if __name__ == "__main__":
    main()
