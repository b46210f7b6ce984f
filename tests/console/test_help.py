"""What ``--help`` shows of every command that there is, what it loads for that, and how long it takes."""

from __future__ import annotations

import importlib
import re
import shlex

import click
import pytest

from pgsluice.console.flags import settings_by_command
from pgsluice.console.program import program
from pgsluice.console.shell.examples import EXAMPLES
from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from tests.commands import commands
from tests.configuration import OPTIONS, Readers
from tests.console.help_pages import HelpPage, help_pages
from tests.console.test_program import program_process
from tests.misses import no_misses
from tests.source_code import REPOSITORY, sources

DEADLINE_S = 0.5
HEAVY = ("pyspark", "pyarrow", "pandas", "nats", "psycopg", "numpy", "uvloop", "asyncio")
SECRET = "hunter2"
WITHOUT_EXAMPLES = {"", "version"}
READ_IN_PART = {"subscriptions"}
"""A group some of whose commands read less than it declares."""


SECRETS = {option.variable: SECRET for option in OPTIONS if option.secret}
MOST_OPTIONS = 15
EVERYWHERE = {"--help", "--help-all"}


@pytest.fixture(scope="module")
def pages() -> dict[str, HelpPage]:
    """Of every command, where every secret is in the environment."""
    return {page.command: page for page in help_pages(commands(), SECRETS)}


@pytest.fixture(scope="module")
def whole_pages(pages: dict[str, HelpPage]) -> dict[str, HelpPage]:
    """The help pages that ``--help-all`` prints; of a command without further options, the page that ``--help`` prints."""
    longer = [command for command, page in pages.items() if "--help-all" in page.text]
    return pages | {page.command: page for page in help_pages(longer, SECRETS, "--help-all")}


def test_every_command_has_a_help_page(pages: dict[str, HelpPage]) -> None:
    unlike = (command for command, page in pages.items() if not page.text.startswith(f"Usage: pgsluice {command}".rstrip()))
    no_misses(unlike, "--help of the command shows no usage of it")
    no_misses((command for command, page in pages.items() if page.exit_code), "--help of the command does not end with 0")
    assert program_process("status", "-h").stdout == program_process("status", "--help").stdout != ""


def test_help_imports_nothing_heavy(pages: dict[str, HelpPage]) -> None:
    heavy = (f"{command}: {name}" for command, page in pages.items() for name in HEAVY if name in page.loaded)
    no_misses(heavy, "loaded for --help of the command: import it where its work begins")


def test_help_answers_at_once(pages: dict[str, HelpPage]) -> None:
    """By the processor's time, and by the fastest of some: the machine may be busy with something else."""
    slow = [page for page in pages.values() if page.cpu_s >= DEADLINE_S]
    for _ in range(4):
        slow = [page for page in help_pages(page.command for page in slow) if page.cpu_s >= DEADLINE_S] if slow else []
    no_misses((f"{page.command}: {page.cpu_s:.2f} s" for page in slow), f"--help takes longer than {DEADLINE_S} s")


def test_no_help_page_shows_a_secret_of_the_environment(pages: dict[str, HelpPage], whole_pages: dict[str, HelpPage]) -> None:
    for shown in (pages, whole_pages):
        no_misses((command for command, page in shown.items() if SECRET in page.text), "help shows a secret's value")


def test_the_first_help_page_has_few_options_and_those_that_are_required(pages: dict[str, HelpPage]) -> None:
    too_long, absent = [], []
    for command, page in pages.items():
        shown = rows_of_options(page).keys() - EVERYWHERE
        if len(shown) > MOST_OPTIONS:
            too_long.append(f"{command}: {len(shown)}")
        settings = readers(command)
        required = (option.flag for option in (config.options_of(*settings) if settings else ()) if option.required)
        absent += [f"{command}: {flag}" for flag in required if flag not in shown]
    no_misses(too_long, f"more than {MOST_OPTIONS} options on the first page of help: give takes(…) those to be shown")
    no_misses(absent, "required, and not on the first page of help")


def test_help_of_a_command_ends_with_examples_that_can_be_called(pages: dict[str, HelpPage]) -> None:
    without = (command for command, page in pages.items() if command not in WITHOUT_EXAMPLES and "Examples:" not in page.text)
    no_misses(without, "no examples in console/shell/examples.py")
    no_misses(EXAMPLES.keys() - pages.keys(), "examples of a command that is not there")
    refused = []
    for path, example in ((path, example) for path, examples in EXAMPLES.items() for example in examples):
        called, arguments = path, shlex.split(re.sub(r" (\||>>?) .*", "", example))
        while isinstance(commands()[called], click.Group):
            called, arguments = f"{called} {arguments[0]}".lstrip(), arguments[1:]
        try:
            with click.Context(commands()[called]) as context:
                context.command.parse_args(context, arguments)
        except click.ClickException as error:
            refused.append(f"pgsluice {path} {example}: {error.format_message()}")
    no_misses(refused, "an example in console/shell/examples.py that the command refuses")


def test_every_command_that_is_declared_can_be_called() -> None:
    """Whatever click command a module of the console makes is the program's, or below one of its groups."""
    declaring = [path for path in sources("console") if "import click" in path.read_text()]
    modules = [
        importlib.import_module(".".join(("pgsluice", *path.relative_to(REPOSITORY).with_suffix("").parts))) for path in declaring
    ]
    callable_commands = [id(command) for command in commands().values()]
    lost = (
        f"{module.__name__}.{name}"
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, click.Command) and id(each) not in callable_commands
    )
    no_misses(lost, "declared, but no command of the program: add it to _COMMANDS of console/program.py, or to its group")


def test_help_of_the_program_lists_every_command() -> None:
    text = program_process("--help").stdout.partition("Run:\n")[2]
    listed = re.findall(r"^  (\S+)(.*)$", text, re.MULTILINE)
    assert [name for name, _ in listed] == program.list_commands(click.Context(program))
    no_misses((name for name, summary in listed if not summary.strip()), "listed without a summary")


def readers(command: str) -> Readers:
    """The settings that it reads: its own, or those of its group; a sink's beside those of every worker. None of a group, which
    leaves options to its commands, but for the group of sinks."""
    if isinstance(commands()[command], click.Group) and command != "worker":
        return ()
    declared, group = settings_by_command(), command.rpartition(" ")[0]
    if command not in declared and (group not in declared or group in READ_IN_PART):
        return ()
    own = declared[command if command in declared else group]
    return (WorkerSettings, own) if group == "worker" else (own,)


def rows_of_options(page: HelpPage) -> dict[str, str]:
    """What help says of each flag, on one line."""
    rows = re.findall(r"^  (?:-\w, )?(--[\w-]+)(.*?)(?=^  -|^\S|\Z)", page.text, re.MULTILINE | re.DOTALL)
    return {flag: " ".join(text.split()) for flag, text in rows}


def test_help_of_a_command_lists_the_options_that_it_reads_and_marks_those_that_it_requires(
    whole_pages: dict[str, HelpPage],
) -> None:
    absent, unread, wrongly_marked = [], [], []
    for command, page in whole_pages.items():
        rows, settings = rows_of_options(page), readers(command)
        options = config.options_of(*settings) if settings else ()
        read = {option.name for option in options}
        strangers = (option for option in OPTIONS if read and option.name not in read)
        unread += [f"{command}: {option.flag}" for option in strangers if option.help in rows.get(option.flag, "")]
        for option in options:
            row = rows.get(option.flag)
            if option.no_effect or option.instead:
                continue
            if row is None:
                absent.append(f"{command}: {option.flag}")
            elif bool(re.search(r"[\[ ]required( with --[\w-]+)?\]$", row)) != option.required:
                wrongly_marked.append(f"{command}: {option.flag} {row}")
    no_misses(absent, "not on the help page of a command that reads it: give it takes(…) of the settings")
    no_misses(unread, "on the help page of a command that does not read it")
    no_misses(wrongly_marked, "marked as required and not, or the other way round")
    assert "[required]" not in whole_pages["rules check"].text, "files alone are checked without them"
