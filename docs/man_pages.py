"""Writes a man page of every command, from the texts of its help: ``python docs/man_pages.py DIRECTORY``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from pgsluice.console.flags import whole_help
from pgsluice.console.program import program


def man_pages() -> dict[str, str]:
    """Returns the text of each page, by its file name: ``pgsluice-worker-file.1``."""
    return {f"{_name(context)}.1": _page(context) for context in _contexts(click.Context(program, info_name="pgsluice"))}


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """Yields the context of the command, and those of all its subcommands."""
    yield context
    for each in _commands(context):
        yield from _contexts(each)


def _commands(context: click.Context) -> list[click.Context]:
    if not isinstance(context.command, click.Group):
        return []
    found = ((name, context.command.get_command(context, name)) for name in context.command.list_commands(context))
    return [click.Context(command, info_name=name, parent=context) for name, command in found if command is not None]


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context) -> str:
    whole_help(context)  # from here on the context shows every option
    command, name = context.command, _name(context)
    options = [each.get_help_record(context) for each in command.get_params(context) if isinstance(each, click.Option)]
    below = [(_name(each), each.command.get_short_help_str(limit=1000)) for each in _commands(context)]
    examples = (command.epilog or "").splitlines()[2:]
    paragraphs = re.split(r"\n\s*\n", command.help or command.get_short_help_str(limit=1000))
    parts = [
        f'.TH "{name.upper()}" 1 "" "pgsluice {version("pgsluice")}" "pgsluice"',
        f".SH NAME\n{_text(name)} \\- {_text(command.get_short_help_str(limit=1000).removesuffix('.'))}",
        f".SH SYNOPSIS\n.B {_text(context.command_path)}\n{_text(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION\n" + "\n.PP\n".join(_text(" ".join(each.split())) for each in paragraphs),
        ".SH OPTIONS\n" + "\n".join(f".TP\n.B {_text(flags)}\n{_text(text)}" for flags, text in filter(None, options)),
        *([".SH COMMANDS\n" + "\n".join(f".TP\n.BR {_text(each)} (1)\n{_text(text)}" for each, text in below)] if below else []),
        *([".SH EXAMPLES\n.nf\n" + "\n".join(_text(each.strip()) for each in examples) + "\n.fi"] if examples else []),
        ".SH EXIT STATUS\n0: done. 2: wrong usage or configuration. 70: needs action by an operator. 75: try again later.",
        *([f".SH SEE ALSO\n.BR {_text(_name(context.parent))} (1)"] if context.parent is not None else []),
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Returns ``text`` with roff's special characters quoted: backslash, hyphen, and a dot or quote that begins a line."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e").replace("-", r"\-"), flags=re.MULTILINE)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for file, text in man_pages().items():
        (directory / file).write_text(text)
