"""The command ``up``: its flags, and what it makes of them before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import click

from pgsluice.console.flags import load_values, peek_settings, takes
from pgsluice.console.up.up_settings import UpSettings
from pgsluice.shared import config
from pgsluice.shared.config.copy_settings import mode_of
from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink_registry import SINKS, CustomSinkSettings, find_sink, is_sink_class, sink_settings

_EXAMPLE = "postgres://user@host:5432/dbname"
_POSTGRES = "postgres"
_SHOWN = (
    "config",
    "source-url",
    "target-url",
    "group",
    "tables",
    "schema",
    "nats-url",
    "log-level",
    "log-format",
    "file-output-dir",
    "webhook-url",
)
"""The options that most users need first. The others are accepted too, but hidden."""

_HEAD = """\
# Options of 'pgsluice up', for every command of the group, for example: pgsluice status --config FILE
# To run replicator and worker separately: pgsluice replicator --config FILE, pgsluice worker {sink} --config FILE
"""
_BROKER = "# nats-url is the broker that 'pgsluice up' runs. For other processes, run a separate NATS and set its URL here.\n"


@click.command()
@click.option(
    "--worker",
    "sink",
    metavar="SINK",
    default=_POSTGRES,
    show_default=True,
    help=f"Sink of the changes: {', '.join(sorted(SINKS))}, or a custom sink as module:Class",
)
@click.option(
    "--state-dir",
    metavar="DIRECTORY",
    default="",
    help="Directory for data that outlives the command [default: by the group's name]",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation if there are warnings")
@click.option("--print-config", is_flag=True, help="Print the equivalent configuration file, and start nothing")
@takes(
    UpSettings,
    ReplicatorSettings,
    WorkerSettings,
    *sink_settings().values(),
    required="required by its sink",
    shown=_SHOWN,
    also={"source-url": "--source", "target-url": "--target"},
)
@click.pass_context
def up(context: click.Context, sink: str, state_dir: str, yes: bool, print_config: bool) -> int:
    """Copy a database's rows and replicate its changes, in one terminal and without a configuration file.

    Starts a NATS server (or uses --nats-url), runs the checks of 'pgsluice check', starts a replicator and a worker, and
    stops all of them at Ctrl-C. The next start continues from there. You can also give every option of 'replicator', 'worker'
    and its sink.

    Every user of the machine can read a password in a command line. Set PGSLUICE_SOURCE_URL and PGSLUICE_TARGET_URL instead,
    or leave the password out of the URL and set PGSLUICE_PASSWORD and PGSLUICE_TARGET_PASSWORD.
    """
    settings = peek_settings(context, UpSettings)
    _check_given(settings, sink)
    values = load_values(context, UpSettings, ReplicatorSettings, WorkerSettings, _settings_of(sink))
    _check_values(values)
    _check_sink(sink, values)
    from pgsluice.console.up.local_broker import find_nats_server
    from pgsluice.console.up.state_directory import prepare, usual_directory
    from pgsluice.console.up.up import Plan, run

    directory = Path(state_dir).expanduser().absolute() if state_dir else usual_directory(settings.group)
    plan = Plan(
        settings=settings,
        sink=sink,
        directory=directory,
        nats_server="" if settings.nats is not None else find_nats_server(),
        values=values,
        added=_added(settings, values),
        asks=not yes,
    )
    if print_config:
        prepare(directory)
        printed = plan.configuration()
        sys.stdout.write(_head(sink, printed.variables, is_own_broker=settings.nats is None) + printed.text)
        return 0
    return run(plan)


def _check_given(settings: UpSettings, sink: str) -> None:
    if settings.source is None:
        raise UsageError("no source is given", f"give --source {_EXAMPLE}, or set PGSLUICE_SOURCE_URL")
    if sink == _POSTGRES and settings.target is None:
        others = ", ".join(sorted(SINKS.keys() - {_POSTGRES}))
        remedy = f"give --target {_EXAMPLE}, or set PGSLUICE_TARGET_URL, or choose another sink with --worker ({others})"
        raise UsageError("no target is given", remedy)
    if sink not in SINKS and not is_sink_class(sink):
        raise UsageError(f"there is no sink '{sink}'", f"the sinks are {', '.join(sorted(SINKS))}, and a custom module:Class")


def _check_values(values: Values) -> None:
    """Raises UsageError for options of one process that make no sense for two."""
    mode, chosen_by = mode_of(values)
    if mode == "copy":
        raise UsageError(f"mode copy, {values.named(chosen_by)}, ends after the copy, and 'up' continues", "remove it")
    if values.given("metrics-listen") and split_address(values.text("metrics-listen"))[1] != 0:
        raise UsageError(
            f"{values.named('metrics-listen')} is one address, and replicator and worker need one each",
            "give port 0, which is any that is free; their logs name it",
        )


def _settings_of(sink: str) -> type[object]:
    return find_sink(sink).settings if sink in SINKS else CustomSinkSettings


def _check_sink(sink: str, values: Values) -> None:
    if sink in SINKS:
        kind = find_sink(sink)
        kind.check(config.make(kind.settings, values))


def _added(settings: UpSettings, values: Values) -> dict[str, str]:
    """Returns options that the command line left out because ``up`` decides them."""
    _, chosen_by = mode_of(values)
    mode = {} if chosen_by else {"mode": "copy-and-stream"}
    return {"group": settings.group, **mode}


def _head(sink: str, variables: Collection[str], *, is_own_broker: bool) -> str:
    """Comments before the configuration."""
    return _HEAD.format(sink=sink) + (_BROKER if is_own_broker else "") + "".join(f"# set {name}\n" for name in variables)
