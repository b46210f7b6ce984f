"""``pgsluice init``, ``completion`` and ``version``."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

import pgsluice
from pgsluice.shared.errors import TerminalError, UsageError

_SCHEMA = Path(pgsluice.__file__).parent / "schemas" / "config.schema.json"
_FIRST_FILE = """\
# yaml-language-server: $schema={schema}
group: orders                       # name that a replicator and its workers share
nats-url: nats://localhost:4222

host: localhost                     # the source; needs wal_level = logical
dbname: shop
user: pgsluice
password: ${{SOURCE_PASSWORD}}        # from the environment
mode: copy-and-stream               # first an initial snapshot, then every change

target-host: warehouse.example.com  # for 'pgsluice worker postgres'
target-dbname: warehouse
target-user: pgsluice
target-password: ${{TARGET_PASSWORD}}
"""


def first_file() -> str:
    """Returns the first configuration file. Its first line names the schema for editors, as installed on this machine."""
    return _FIRST_FILE.format(schema=_SCHEMA)


@click.command()
@click.argument("file", default="pgsluice.yaml", type=click.Path(path_type=Path, allow_dash=True))
def init(file: Path) -> None:
    """Write a first configuration file, for PostgreSQL to PostgreSQL. FILE is pgsluice.yaml by default; - prints it.

    Edit it, set both passwords in the environment, then run 'pgsluice check --config FILE'.
    """
    if str(file) == "-":
        click.echo(first_file(), nl=False)
        return
    try:
        with file.open("x") as new:
            new.write(first_file())
    except FileExistsError:
        raise UsageError(f"{file} exists already", "give another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", "give a name in a directory that you may write") from None
    click.echo(f"{file} is written. Edit it, then run: pgsluice check --config {file}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL. Add it to the shell's start-up file."""
    program = context.find_root()
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(program.command, {}, "pgsluice", "_PGSLUICE_COMPLETE").source())


@click.command()
def version() -> None:
    """Show the program's version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        click.echo(f"pgsluice {installed_version('pgsluice')}")
    except PackageNotFoundError:
        raise TerminalError("the version is not known: pgsluice is not installed as a package", "pip install it") from None
