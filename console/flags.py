"""Adds the options of settings to commands, and reads them from the command or one of its parents.

An option can be given to the command or to any group before it (``pgsluice --config F worker --group g postgres``), as
with pg_flo; the nearest to the command wins.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import click

from pgsluice.console.shell.examples import EXAMPLES
from pgsluice.shared import config, telemetry
from pgsluice.shared.config.declaration import CONFIG
from pgsluice.shared.config.kinds import Kind, parse_duration
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import COMMANDS, LogSettings
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink_registry import sink_settings

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])
T = TypeVar("T")

REQUIRED = "required"

USUAL = (
    {"config", "group", "nats-url", "name", "metrics-listen", "listen", "rules-config", "routing-config", "pipelines-config"}
    | {"source-url", "host", "dbname", "user", "password", "tables", "mode", "track-ddl"}
    | {"target-url", "target-host", "target-dbname", "target-user", "target-password", "ddl", "format"}
    | {"file-output-dir", "webhook-url", "kafka-brokers", "kafka-topic", "nats-stream", "search-url", "search-index"}
)
"""The options that ``--help`` lists, besides the ones that a sink requires. ``--help-all`` lists all options."""

_REPEATABLE = (Kind.LIST, Kind.PAIRS)
_FLAGS = "pgsluice.flags"
"""Key of the flags given so far, in click's storage that a command shares with its groups."""
_SHOWS_ALL = "pgsluice.shows_all"
"""Key that is set while the whole help text is made."""

_log = telemetry.logger(__name__)


def duration(text: str) -> float:
    """Seconds, for a flag that takes them as they are written in a configuration file."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}; write it like 30s") from None


def settings_by_command() -> dict[str, type[Any]]:
    """Returns the settings of each command; a sink's command reads the settings of ``worker`` too."""
    return COMMANDS | {f"worker {kind}": settings for kind, settings in sink_settings().items()}


@functools.cache
def known_options() -> tuple[Option, ...]:
    """Returns the options of all commands: a file may contain each, whichever command reads it."""
    return config.options_of(*settings_by_command().values())


def takes(
    *settings: type[Any],
    required: str = REQUIRED,
    shown: Collection[str] | None = None,
    also: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[CommandFunction], CommandFunction]:
    """Gives a click command the flags of ``settings``. They are read by ``load_values``, not passed to the function. ``required``
    is the note of an option that the command cannot do without. ``shown`` names the options that ``--help`` lists, None: the
    usual ones. ``also`` has a second flag for some."""

    def decorate(function: CommandFunction) -> CommandFunction:
        function = _HELP_ALL(function)
        for option in reversed(config.options_of(*settings)):
            is_usual = option.name in shown if shown is not None else option.required or option.name in USUAL
            function = _flag(option, required, also.get(option.name), is_usual=is_usual)(function)
        return function

    return decorate


def takes_config(function: CommandFunction) -> CommandFunction:
    """Gives a click group the flag ``--config`` alone."""
    return _flag(CONFIG)(function)


def load_settings(context: click.Context, settings: type[T]) -> T:
    """Returns the settings of the running command, checked; from here on the log has the form and level they ask for."""
    return config.make(settings, load_values(context, settings))


def peek_settings(context: click.Context, settings: type[T]) -> T:
    """Reads settings early, for a command that needs them before all of its settings: nothing is logged or set up."""
    return config.make(settings, config.load(context.meta.get(_FLAGS, {}), os.environ, settings, known=known_options()))


def load_values(context: click.Context, *settings: type[Any]) -> config.Values:
    """Loads several settings, as values that any of them can be made of."""
    known = known_options()
    values = config.load(context.meta.get(_FLAGS, {}), os.environ, *settings, known=known)
    telemetry.set_up(config.make(LogSettings, values))
    for notice in config.notices(values, os.environ, known):
        _log.warning(notice.message, name=notice.name, place=notice.place, reason=notice.reason)
    return values


def variables_given(context: click.Context) -> dict[str, str]:
    """Returns the flags that were given to the running command, as variables for another process."""
    given, options = context.meta.get(_FLAGS, {}), {option.name: option for option in known_options()}
    return {options[name].variable: _as_variable(options[name].kind, value) for name, value in given.items()}


def _as_variable(kind: Kind, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value
    return ",".join(value) if kind is Kind.LIST else json.dumps(dict(pair.split("=", 1) for pair in value))


def reloading(context: click.Context, settings: type[T]) -> Callable[[], tuple[T, frozenset[str]]]:
    """Reads the settings of the running command again, whenever it is called: with the options whose values are others than now.
    The call raises UsageError for what cannot be read."""
    known, flags = known_options(), dict(context.meta.get(_FLAGS, {}))
    first = config.load(flags, os.environ, settings, known=known).values

    def read_again() -> tuple[T, frozenset[str]]:
        values = config.load(flags, os.environ, settings, known=known)
        names = values.values.keys() | first.keys()
        return config.make(settings, values), frozenset(name for name in names if values.values.get(name) != first.get(name))

    return read_again


def confirm(command: str, question: str) -> None:
    """Raises UsageError unless the answer is yes; also without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks before it removes anything, and standard input is not a terminal", "give --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was removed", "answer y, or give --yes")


def whole_help(context: click.Context) -> str:
    """Returns the help text that ``--help-all`` prints."""
    context.meta[_SHOWS_ALL] = True
    return context.get_help()


class _Flag(click.Option):
    """A flag of an option; the short help omits unusual ones."""

    def __init__(self, *arguments: Any, is_usual: bool, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.is_usual = is_usual

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if self.is_usual or _SHOWS_ALL in ctx.meta else None


class _HelpAllFlag(click.Option):
    """``--help-all``, which help lists where it has more to show."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        others = [each for each in ctx.command.params if isinstance(each, _Flag) and not each.is_usual]
        return ("--help-all", f"Show {len(others)} more options.") if others and _SHOWS_ALL not in ctx.meta else None


def _print_all(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        click.echo(whole_help(context), color=context.color)
        context.exit()


_HELP_ALL = click.option(
    "--help-all", cls=_HelpAllFlag, is_flag=True, is_eager=True, expose_value=False, callback=_print_all, help="Show all options."
)


def _flag(
    option: Option, required: str = REQUIRED, also: str | None = None, *, is_usual: bool = True
) -> Callable[[CommandFunction], CommandFunction]:
    """Returns a flag that takes the unparsed text: the kind parses it later, like the other sources.

    A switch's value may be left out (``--copy``, ``--copy=false``).
    """

    def remember(context: click.Context, parameter: click.Parameter, value: str | tuple[str, ...] | None) -> None:
        if value:  # a group's options are processed before its command's, so the nearest wins
            context.meta.setdefault(_FLAGS, {})[option.name] = value

    optional_value: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if option.kind is Kind.SWITCH else {}
    return click.option(
        *filter(None, (also, option.flag)),
        cls=_Flag,
        is_usual=is_usual,
        type=str,
        multiple=option.kind in _REPEATABLE,
        expose_value=False,
        callback=remember,
        metavar=option.kind.value,
        help=option_help(option, required),
        hidden=bool(option.no_effect or option.instead),
        **optional_value,
    )


def option_help(option: Option, required: str = REQUIRED) -> str:
    notes = [option.allowed] if option.choices else []
    if option.default and option.kind is not Kind.SWITCH and not option.secret:
        notes.append(f"default {option.default}")
    if option.required:
        notes.append(required)
    return f"{option.help} [{'; '.join(notes)}]" if notes else option.help


def complete_help(path: str, command: click.Command) -> None:
    """Adds the examples to the help of a command, and of its subcommands; ``--help-all`` comes last."""
    command.params.sort(key=lambda parameter: parameter.name == "help_all")
    if path in EXAMPLES:
        lines = [f"  {' '.join(filter(None, ('pgsluice', path, each)))}" for each in EXAMPLES[path]]
        command.epilog = "\n".join(["\b", "Examples:", *lines])
    for name, below in getattr(command, "commands", {}).items():
        complete_help(f"{path} {name}", below)
