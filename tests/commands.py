"""The program's commands, as they can be called."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import click

from pgsluice.console.program import program


@cache
def commands() -> dict[str, click.Command]:
    """By how they are called: "" is the program itself, and each group stands before its commands, like "worker postgres"."""
    return dict(_below("", program))


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _below(f"{path} {name}".lstrip(), found)
