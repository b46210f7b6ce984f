"""How the program starts where something is missing: standard descriptors, UTF-8, time before the first signal."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.console.test_program import REPOSITORY, flags
from tests.waiting import wait_until

NOWHERE = "--nats-url=nats://127.0.0.1:1"
QUICK = "--connect-timeout=1s"
REPLICATOR = ["replicator", *flags(), NOWHERE, QUICK]
WORKER = ["worker", "stdout", "--group=orders", NOWHERE, QUICK]
STATUS = ["status", "--group=orders", NOWHERE]
NO_PYTHON_HELP = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


def start(*arguments: str, redirection: str = "", env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The program by way of a shell, which redirects (``<&-`` closes standard input) and is replaced by the program."""
    command = shlex.join([sys.executable, "-m", "pgsluice.console.program", *arguments])
    return subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command} {redirection}"],
        cwd=REPOSITORY,
        env=os.environ | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(*arguments: str, redirection: str = "", env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, output and log."""
    with start(*arguments, redirection=redirection, env=env) as process:
        output, log = process.communicate(timeout=60)
    return process.returncode, output.decode(), log.decode()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "redirection"),
    [
        (REPLICATOR, 75, "<&- >&-"),
        (REPLICATOR, 75, "<&- >&- 2>&-"),
        (["status", "--group=/", NOWHERE], 2, ">&-"),
        (["status", "--group=/", NOWHERE], 2, "2>&-"),
        (["dead", "list", "--group=/", NOWHERE], 2, "<&- >&- 2>&-"),
        (["version"], 0, "<&- >&- 2>&-"),
        (["rules", "check", "/absent.yaml"], 2, "<&- >&-"),
        (["drop", *flags()], 2, "<&-"),
    ],
    ids=lambda value: " ".join(value[:2])[:20] if isinstance(value, list) else value if isinstance(value, str) else "",
)
def test_a_closed_standard_descriptor_changes_nothing(arguments: list[str], exit_code: int, redirection: str) -> None:
    code, _, log = ended(*arguments, redirection=redirection)
    assert code == exit_code, log
    assert "Traceback" not in log


@pytest.mark.parametrize(("redirection", "exit_code"), [("<&- 2>&-", 75), (">&-", 2)])
def test_a_worker_that_writes_to_a_closed_standard_output_says_so(redirection: str, exit_code: int) -> None:
    code, _, log = ended(*WORKER, redirection=redirection)
    assert code == exit_code, log
    assert "Traceback" not in log
    assert ("standard output is closed, and the stdout sink" in log) is (exit_code == 2)


@pytest.mark.parametrize("arguments", [["--group=größe", NOWHERE], ["--group=a", NOWHERE, "--log-level=größer"]])
def test_names_that_are_not_ascii_are_told_in_utf8_whatever_the_locale(arguments: list[str]) -> None:
    code, _, log = ended("status", *arguments, env=NO_PYTHON_HELP)
    assert code == 2
    assert "größe" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("host", ["169.254.169.254", "localhost"])
def test_a_webhook_to_a_private_address_is_refused_before_anything_is_waited_for(host: str) -> None:
    code, _, log = ended("worker", "webhook", "--group=orders", NOWHERE, f"--webhook-url=http://{host}/")
    assert code == 70, log
    assert "connecting" not in log
    assert "webhook-allow-hosts" in log


def catches(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether the program has a handler for the signal by now."""
    assert process.poll() is None
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & 1 << (number - 1))
    return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux which signals are handled")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("arguments", [REPLICATOR, WORKER], ids=["replicator", "worker"])
def test_a_signal_during_the_imports_ends_with_0(arguments: list[str], number: signal.Signals) -> None:
    with start(*arguments[:-1]) as process:
        wait_until(lambda: catches(process, signal.SIGTERM) and (number != signal.SIGHUP or catches(process, number)))
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log.decode()
    assert b"Traceback" not in log


@pytest.mark.parametrize("arguments", [REPLICATOR, WORKER], ids=["replicator", "worker"])
def test_a_signal_while_nats_is_away_ends_with_0_at_once(arguments: list[str]) -> None:
    with start(*arguments[:-1]) as process:
        assert process.stderr is not None
        while b"connecting to NATS" not in process.stderr.readline():
            assert process.poll() is None
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log.decode()
    assert time.monotonic() - started < 5
    assert b"Traceback" not in log


def test_a_hang_up_that_is_ignored_at_the_start_stays_ignored() -> None:
    program = shlex.join([sys.executable, "-m", "pgsluice.console.program", *REPLICATOR, "--connect-timeout=2s"])
    with subprocess.Popen(["/bin/sh", "-c", f"trap '' HUP; exec {program}"], cwd=REPOSITORY, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"connecting to NATS" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 75


def test_another_command_dies_of_sigterm_as_programs_do() -> None:
    with start(*STATUS) as process:
        assert process.stderr is not None
        while b"connecting to NATS" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_a_process_that_dies_leaves_no_core_whatever_its_starter_allows() -> None:
    """A core holds passwords and rows. SIGABRT would have one written."""

    def core_limit() -> str:
        lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        return next(line.split()[4] for line in lines if line.startswith("Max core file size"))

    ours = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (ours[1], ours[1]))
    try:
        started = start(*REPLICATOR[:-1], "--connect-timeout=60s")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, ours)
    with started as process:
        try:
            wait_until(lambda: core_limit() == "0", what="the program forgoes a core")
        finally:
            process.send_signal(signal.SIGABRT)
            assert process.wait(60) == -signal.SIGABRT
