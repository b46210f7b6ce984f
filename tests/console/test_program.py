"""The program's commands, what they load, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import pytest

from pgsluice.console.flags import load_values, takes
from pgsluice.console.program import INTERRUPTED, program, run
from pgsluice.shared import config
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, TransientError, UsageError, WireError
from pgsluice.worker.sinks.sink_registry import SINKS
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from tests.configuration import REQUIRED

REPOSITORY = Path(__file__).parents[2]

Probe = Callable[[Callable[[], None]], None]


@pytest.fixture
def probe() -> Iterator[Probe]:
    """Adds a command ``probe`` to the program that runs a function of the test."""

    def add(function: Callable[[], None]) -> None:
        program.add_command(click.Command("probe", callback=function))

    yield add
    program.commands.pop("probe", None)


def program_process(
    *arguments: str, stdin: int = subprocess.DEVNULL, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", "pgsluice.console.program", *arguments], os.environ | variables
    return subprocess.run(command, cwd=REPOSITORY, env=env, stdin=stdin, capture_output=True, text=True, timeout=60, check=False)


def flags(**changes: str) -> list[str]:
    return [f"--{name}={value}" for name, value in (REQUIRED | changes).items() if not name.startswith("target-")]


@pytest.mark.parametrize("is_unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("rules", "check", "nowhere.yml"), ("status", "--no-such-flag"), ("no-such-command",)])
def test_the_exit_code_stays_when_nobody_reads_standard_error(arguments: tuple[str, ...], is_unbuffered: str) -> None:
    """Python itself would end with 120 where it buffers, as it does unless a variable says otherwise."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pgsluice.console.program", *arguments]
    env = os.environ | {"PYTHONUNBUFFERED": is_unbuffered}
    try:
        ended = subprocess.run(command, cwd=REPOSITORY, env=env, stderr=writing, timeout=60, check=False)
        assert ended.returncode == UsageError.exit_code
    finally:
        os.close(writing)


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_is_shown_on_standard_output(argument: str) -> None:
    ended = program_process(argument)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("pgsluice ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Usage: pgsluice [OPTIONS] COMMAND"),
        (["replicate"], "No such command 'replicate'"),
        (["replicator", "--hots", "x"], "No such option '--hots'"),
        (["replicator", "--host"], "requires an argument"),
        (["replicator", "extra"], "unexpected extra argument"),
        (["worker"], "Usage: pgsluice worker [OPTIONS] COMMAND"),
        (
            ["worker", "kinesis"],
            f"there is no sink 'kinesis': the sinks are {', '.join(sorted(SINKS))};",
        ),
        (
            ["replicator", *flags(host="postgres://u:p@db/shop")],
            "host (--host) takes a host, not a URL or a connection string: give it as source-url, or its parts: host: db",
        ),
        (["replicator", *flags(dbname="host=db dbname=shop")], "dbname (--dbname) takes a database's name, not a URL"),
        (["status", "--config", "/tmp"], "config '/tmp' (--config) is a directory, not a file: check the path"),
        (
            ["status", "--group", "my orders", "--nats-url", "localhost"],
            "group 'my orders' is not a valid name (--group): use 1 to 40",
        ),
        (["status", "--config", "/absent.yaml"], "config '/absent.yaml' (--config) is not there (no such file): check the path"),
        (["replicator", *flags(port="abc")], "port 'abc' (--port) is not a whole number: write it like 5432"),
        (
            ["replicator", *flags(), "--copy", "--until-lsn=current"],
            "until-lsn (--until-lsn) has no meaning with mode copy, copy (--copy)",
        ),
        (["replicator", *flags(), "--recopy=t"], "recopy (--recopy) has no meaning without a copy"),
        (
            ["replicator", *flags(), "--stream", "--copy-and-stream"],
            "several modes are given: stream (--stream), copy-and-stream",
        ),
        (["drop", *flags()], "drop asks before it removes anything, and standard input is not a terminal: give --yes"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_wrong_command_line_ends_with_2_and_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert "u:p@" not in said.err
    assert not said.out


def test_a_process_ends_with_the_exit_code_and_says_nothing_on_standard_output() -> None:
    ended = program_process("replicate")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "No such command 'replicate'" in ended.stderr


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (UsageError("the key is wrong", "correct it"), 2),
        (TerminalError("the slot is lost", "drop it"), 70),
        (WireError("the bytes are wrong", "call someone"), 70),
        (TransientError("the server is away", "try again"), 75),
    ],
)
def test_an_error_ends_with_its_exit_code_and_one_sentence(
    probe: Probe, capsys: pytest.CaptureFixture[str], error: PgsluiceError, exit_code: int
) -> None:
    def fail() -> None:
        raise error

    probe(fail)
    assert run(["probe"]) == exit_code
    assert capsys.readouterr() == ("", f"pgsluice: {error.fact}: {error.remedy}\n")


def test_an_unexpected_exception_ends_with_70_and_a_traceback_in_the_log(
    probe: Probe, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("division by zero")

    probe(fail)
    assert run(["probe"]) == 70
    [record] = caplog.records
    assert record.getMessage() == "unexpected error"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert capsys.readouterr().err.startswith("pgsluice: an unexpected error ended the program")


def test_an_interruption_at_the_terminal_ends_as_shells_expect(probe: Probe) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    probe(interrupt)
    assert run(["probe"]) == INTERRUPTED


def test_a_command_that_returns_ends_with_0(probe: Probe) -> None:
    probe(lambda: None)
    assert run(["probe"]) == 0


def test_the_last_line_is_json_when_the_log_is(tmp_path: Path) -> None:
    (tmp_path / "password").touch()
    path = tmp_path / "pgsluice.yaml"
    path.write_text("log-format: json\n" + "".join(f"{key}: {value}\n" for key, value in REQUIRED.items()))
    ended = program_process("drop", "--config", str(path))
    assert ended.returncode == 2
    assert json.loads(ended.stderr)["exit_code"] == 2


def loaded(arguments: list[str], *settings: type[Any]) -> config.Values:
    """What a command with ``settings`` loads from ``arguments``, in a group and a program that take options too."""
    found: list[config.Values] = []

    @click.group()
    @takes(WorkerSettings)
    def outer() -> None:
        pass

    @outer.command()
    @takes(*settings)
    @click.pass_context
    def inner(context: click.Context) -> None:
        found.append(load_values(context, *settings))

    program.add_command(outer)
    try:
        assert run(arguments) == 0
    finally:
        del program.commands["outer"]
    return found[0]


def test_options_can_stand_before_and_behind_the_command_and_the_nearest_wins(tmp_path: Path) -> None:
    path = tmp_path / "pgsluice.yaml"
    path.write_text("nats-url: nats\ngroup: from-file\n")
    arguments = ["--config", str(path), "outer", "--group=of-group", "--name=first", "inner", "--name=second"]
    values = loaded(arguments, WorkerSettings, StdoutSinkSettings)
    assert (values.text("group"), values.text("name"), values.text("nats-url")) == ("of-group", "second", "nats://nats")


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (["--failover"], True),
        (["--failover=true"], True),
        (["--failover", "false"], False),
        (["--failover=0"], False),
        ([], False),
    ],
)
def test_the_value_of_a_switch_can_be_left_out(given: list[str], value: bool) -> None:
    assert loaded(["outer", "inner", *given, *flags()], ReplicatorSettings).switch("failover") is value


def test_lists_and_pairs_can_be_repeated() -> None:
    values = loaded(["outer", "inner", "--tables", "a,b", "--tables", "c", *flags()], ReplicatorSettings)
    assert values.names("tables") == ("a", "b", "c")
    given = ["--group=g", "--nats-url=n", "--spark", "master=local[2]", "--spark", "spark.x=a,b=c"]
    assert loaded(["outer", "inner", *given], WorkerSettings).pairs("spark") == {"spark.master": "local[2]", "spark.x": "a,b=c"}


def test_an_empty_flag_counts_as_not_given() -> None:
    assert loaded(["outer", "inner", "--schema=", *flags()], ReplicatorSettings).text("schema") == "public"


def test_what_has_no_effect_is_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PGSLUICE_SCHEMMA", "x")
    loaded(["outer", "inner", *flags()], ReplicatorSettings)
    assert "a setting has no effect  name=PGSLUICE_SCHEMMA" in capsys.readouterr().err
