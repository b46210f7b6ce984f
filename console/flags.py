"""How a command takes its options from the table, and from which of its parents.

An option can be given to the command or to any group before it (``pgsluice --config F worker --group g postgres``), as with
pg_flo; the nearest to the command wins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pgsluice.shared import config, telemetry
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.options import BY_NAME, Option, Role, options_of
from pgsluice.shared.errors import UsageError

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

_REPEATABLE = (Kind.LIST, Kind.PAIRS)
_FLAGS = "pgsluice.flags"
"""Key of the flags given so far, in click's storage that a command shares with its groups."""

_log = telemetry.logger(__name__)


def takes(*roles: Role) -> Callable[[CommandFunction], CommandFunction]:
    """Gives a click command the flags of ``roles``. They are read by ``load_values``, not passed to the function."""

    def decorate(function: CommandFunction) -> CommandFunction:
        for option in reversed(options_of(*roles)):
            function = _flag(option, roles)(function)
        return function

    return decorate


def takes_config(function: CommandFunction) -> CommandFunction:
    """Gives a click group the flag ``--config`` alone."""
    return _flag(BY_NAME["config"])(function)


def load_values(context: click.Context, *roles: Role) -> config.Values:
    """The checked values of the running command; from here on the log has the form and level they ask for."""
    values = config.load(context.meta.get(_FLAGS, {}), os.environ, *roles)
    telemetry.set_up(config.log_settings(values))
    for notice in config.notices(values, os.environ):
        _log.warning(notice.message, name=notice.name, place=notice.place, reason=notice.reason)
    return values


def confirm(command: str, question: str) -> None:
    """Raises UsageError unless the answer is yes; without a terminal there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks before it removes anything, and standard input is not a terminal", "give --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was removed", "answer y, or give --yes")


def _flag(option: Option, roles: tuple[Role, ...] = ()) -> Callable[[CommandFunction], CommandFunction]:
    """A flag that takes text as it stands: the kind reads it later, as it reads the other sources.

    A switch's value may be left out (``--copy``, ``--copy=false``).
    """

    def remember(context: click.Context, parameter: click.Parameter, value: str | tuple[str, ...] | None) -> None:
        if value:  # a group's options are processed before its command's, so the nearest wins
            context.meta.setdefault(_FLAGS, {})[option.name] = value

    optional_value: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if option.kind is Kind.SWITCH else {}
    return click.option(
        option.flag,
        type=str,
        multiple=option.kind in _REPEATABLE,
        expose_value=False,
        callback=remember,
        metavar=option.kind.value,
        help=_help(option, roles),
        **optional_value,
    )


def _help(option: Option, roles: tuple[Role, ...]) -> str:
    notes = [option.allowed] if option.choices else []
    if option.default and option.kind is not Kind.SWITCH and not option.secret:
        notes.append(f"default {option.default}")
    if not set(roles).isdisjoint(option.required):
        notes.append("required with --against-source" if Role.RULES in roles else "required")
    return f"{option.help} [{'; '.join(notes)}]" if notes else option.help
