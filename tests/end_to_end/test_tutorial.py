"""The commands of docs/tutorial.md, in their order, do what stands below them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers.child import ChildProcess, free_port
from tests.servers.postgres_binaries import binaries
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text()
PORTS = ("5433", "5434", "4333")

_BLOCK = re.compile(r"```(sh|text)\n(.*?)```", re.DOTALL)
COMMAND_DEADLINE_S = 60.0
ARRIVAL_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0


class Reader:
    """Somebody who reads the page with several terminals: what runs on stays in one of its own, by its first two words."""

    def __init__(self, directory: Path, ports: tuple[str, ...], terminals: ExitStack) -> None:
        self._directory, self._ports, self._terminals = directory, ports, terminals
        path = [str(Path(sys.executable).parent), str(binaries()), os.environ["PATH"]]
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("PGSLUICE_", "PG_FLO_", "PG"))}
        self._env |= {"PATH": os.pathsep.join(path), "PYTHONPATH": str(REPOSITORY), "HOME": str(directory)}
        self._exports = ""
        self._running: dict[str, ChildProcess] = {}

    def leave_running(self, command: str) -> None:
        """In place of one of the same words, which is interrupted before."""
        name = " ".join(command.split()[:2])
        if name in self._running:
            self.interrupt(name)
        log = self._directory / (name.replace(" ", "-") + ".log")
        process = ChildProcess(["bash", "-c", "exec " + command], log_path=log, cwd=self._directory, env=self._env)
        self._terminals.callback(process.kill)
        self._running[name] = process
        if name.startswith("python"):
            wait_until(lambda: "Ready." in log.read_text(), deadline_s=COMMAND_DEADLINE_S, what="the servers")

    def interrupt(self, name: str) -> None:
        """Ctrl-C goes to everything in the terminal."""
        process = self._running.pop(name)
        process.send_all(signal.SIGINT)
        assert process.wait(STOP_DEADLINE_S) == 0, name

    def run(self, commands: str) -> str:
        """The output of ``commands``, which all have to succeed; what they export stays."""
        done = self._bash(commands)
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        self._exports += "".join(line + "\n" for line in commands.splitlines() if line.startswith("export "))
        return done.stdout

    def _bash(self, commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", self._exports + commands],
            cwd=self._directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
        )

    def follow(self, block: str) -> None:
        """What one block of the page says."""
        commands = block
        for written, here in zip(PORTS, self._ports, strict=True):
            commands = commands.replace(written, here)
        match commands.split()[:2]:
            case ["make", "install"]:
                assert self.run("pgsluice version").startswith("pgsluice ")
            case ["make", "servers"]:
                self.leave_running(f"python -m tests.servers {' '.join(self._ports)}")
            case ["pgsluice", "replicator" | "worker"]:
                self.leave_running(commands)
            case ["pgsluice", "drop"]:
                self.interrupt("pgsluice worker")
                self.interrupt("pgsluice replicator")
                self.run(commands)
            case _:
                self.run(commands)

    def expect(self, command: str, output: str) -> None:
        """``command`` prints ``output``, sooner or later."""
        wait_until(
            lambda: self._bash(command).stdout.split() == output.split(),
            deadline_s=ARRIVAL_DEADLINE_S,
            what=f"{command}:\n{output}",
        )


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as terminals:
        yield Reader(tmp_path, tuple(str(free_port()) for _ in PORTS), terminals)


def test_the_tutorial_works_as_it_is_written(reader: Reader) -> None:
    blocks = _BLOCK.findall(PAGE)
    shown = [number for number, (kind, _) in enumerate(blocks) if kind == "text"]
    assert len(shown) == 3
    for number, (kind, block) in enumerate(blocks):
        if kind == "text":
            continue
        if number + 1 not in shown:
            reader.follow(block)
            continue
        *first, last = block.splitlines()
        reader.follow("\n".join(first))
        reader.expect(last, output=blocks[number + 1][1])
    reader.interrupt("python -m")
