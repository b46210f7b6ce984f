"""The program ``pgsluice``: finds the command, runs it, and turns its error into a sentence and an exit code.

Exit codes: 0 done, 2 usage or configuration, 70 needs an operator, 75 try again; 130 when interrupted at the terminal.
A replicator or worker that is stopped by a signal is done.

A command's module is imported when the command is chosen, by name, and its work when it runs: so no process loads what
only another command needs.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import click

from pgsluice.console.flags import complete_help, takes_config
from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.process import start as process_start
from pgsluice.shared.process import stop_signals

INTERRUPTED = 130
"""The exit code that a shell reports for a process that SIGINT ended."""

_SECTIONS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Run": {
        "up": ("pgsluice.console.up.up_command", "up", "Replicate one database into another, in one terminal."),
        "init": ("pgsluice.console.shell.shell_commands", "init", "Write a first configuration file."),
        "check": (
            "pgsluice.console.check.check_command",
            "check",
            "Check a configuration and its servers, with SQL that fixes it.",
        ),
        "replicator": ("pgsluice.console.commands", "replicator", "Publish a database's changes to NATS JetStream."),
        "worker": ("pgsluice.console.worker", "worker", "Apply a group's changes to a sink."),
        "drop": ("pgsluice.console.commands", "drop", "Remove everything a group created at the source and in NATS."),
    },
    "Inspect": {
        "status": ("pgsluice.console.commands", "status", "Show position and lag of a group's processes."),
        "lag": ("pgsluice.console.commands", "lag", "Exit with 0 if the workers keep up, for probes and scripts."),
        "messages": ("pgsluice.console.inspect.inspect_commands", "messages", "Show the changes in a group's stream."),
        "trace": (
            "pgsluice.console.inspect.inspect_commands",
            "trace",
            "Show each change of a row, and which workers applied it.",
        ),
        "rules": ("pgsluice.console.commands", "rules", "Check rules and routing files, and test them on changes."),
    },
    "Operate": {
        "pause": ("pgsluice.console.units.unit_commands", "pause", "Pause workers between two batches."),
        "resume": ("pgsluice.console.units.unit_commands", "resume", "Resume paused workers."),
        "stop": ("pgsluice.console.units.unit_commands", "stop", "Stop a group's processes, and keep them stopped."),
        "start": ("pgsluice.console.units.unit_commands", "start", "Allow stopped processes to start again."),
        "tables": ("pgsluice.console.table_commands", "tables", "List, add, remove and resync tables."),
        "dead": ("pgsluice.console.commands", "dead", "List, replay or discard dead letters (DLQ)."),
        "ddl": ("pgsluice.console.ddl_commands", "ddl", "Manage the capture of schema changes (DDL)."),
        "search": ("pgsluice.console.search.search_commands", "search", "Rebuild the indexes of a search worker."),
        "subscriptions": (
            "pgsluice.console.subscriptions.subscription_commands",
            "subscriptions",
            "Manage webhook subscriptions.",
        ),
        "forget": ("pgsluice.console.commands", "forget", "Forget a worker that will not return."),
        "nats": ("pgsluice.console.broker.broker_commands", "nats", "Print NATS permissions, and create a group's streams."),
        "spark-archive": ("pgsluice.console.commands", "spark_archive", "Make Spark start faster."),
    },
    "Query pipelines": {
        "run": ("pgsluice.console.pipelines.pipeline_commands", "run", "Run a query pipeline once."),
        "schedule": ("pgsluice.console.executor.executor_commands", "schedule", "Run query pipelines on their schedules."),
        "runs": ("pgsluice.console.pipelines.pipeline_commands", "runs", "List, pause, resume or cancel runs."),
        "steps": ("pgsluice.console.pipelines.pipeline_commands", "steps", "Test a pipeline's transforms on rows of a file."),
    },
    "Server": {
        "server": ("pgsluice.console.server.server_commands", "server", "Serve the REST API and the web page."),
        "token": ("pgsluice.console.server.server_commands", "token", "Manage the access tokens of a server."),
        "plan": ("pgsluice.console.documents.documents_command", "plan", "Show the changes that 'apply' would make."),
        "apply": ("pgsluice.console.documents.documents_command", "apply", "Apply group configurations from YAML files."),
        "export": ("pgsluice.console.documents.documents_command", "export", "Export group configurations as YAML."),
    },
    "Shell": {
        "completion": ("pgsluice.console.shell.shell_commands", "completion", "Print the completion script of a shell."),
        "version": ("pgsluice.console.shell.shell_commands", "version", "Show the program's version."),
    },
}
"""Section of the help → command → module, attribute, summary. The summary is here so that ``--help`` imports none of
them."""

_COMMANDS = {name: entry for section in _SECTIONS.values() for name, entry in section.items()}
ALIASES = {"dlq": "dead"}
"""Other names of commands, which help does not list."""

_SERVICES = ("up", "replicator", "worker", "server", "schedule")
"""The commands that run until they are stopped."""


class LazyGroup(click.Group):
    """A group whose commands are imported when one is chosen."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        if cmd_name in _SERVICES:
            stop_signals.service()
        else:
            stop_signals.release()
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        complete_help(cmd_name, command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = get_close_matches(args[0], [*self.list_commands(ctx), *ALIASES])
            raise click.UsageError(f"No such command '{args[0]}'.{_meant(close)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, _, summary) in commands.items()])


def _meant(close: list[str]) -> str:
    return " Did you mean " + " or ".join(f"'{name}'" for name in close) + "?" if close else ""


def _version_option(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        from pgsluice.console.shell.shell_commands import version

        context.invoke(version)
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@takes_config
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version_option, help="Show the program's version."
)
def program() -> None:
    """Change data capture (CDC) for PostgreSQL through NATS JetStream, with rules that filter and mask changes.

    Every flag is also an environment variable (--nats-url: PGSLUICE_NATS_URL) and a key of the YAML file (nats-url:). The
    flag wins over the variable, the variable over the file, the file over the default.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command in ``arguments`` (default: the process's own) and ends the process with its exit code."""
    process_start.open_standard_streams()
    process_start.speak_utf8()
    process_start.leave_no_core()
    stop_signals.hold()
    exit_code = run(arguments)
    process_start.forgo_unread_errors()
    sys.exit(exit_code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command in ``arguments`` and returns the exit code; what went wrong is on standard error by then."""
    try:
        return int(program.main(arguments, prog_name="pgsluice", standalone_mode=False) or 0)
    except PgsluiceError as error:
        telemetry.report_failure(str(error), error.exit_code)
        return error.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError):  # standard error has no reader
            error.show()
        return UsageError.exit_code
    except click.Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last frame of the program: a defect must end in the log and in an exit code
        from pgsluice.shared.spark.java import is_for_want_of_spark, no_spark  # here, because few processes need it

        if is_for_want_of_spark(error):
            telemetry.report_failure(str(no_spark()), UsageError.exit_code)
            return UsageError.exit_code
        telemetry.logger(__name__).exception("unexpected error", type=type(error).__name__)
        telemetry.report_failure("an unexpected error ended the program: see the traceback in the log", TerminalError.exit_code)
        return TerminalError.exit_code


if __name__ == "__main__":
    main()
