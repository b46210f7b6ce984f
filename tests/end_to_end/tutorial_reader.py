"""Somebody who follows a page of docs/ with several terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.servers.child import ChildProcess
from tests.servers.postgres_binaries import binaries
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
PORTS = ("5433", "5434", "4333", "9250")
"""As the pages have them: of source, target, NATS and the search server."""

_STEP = re.compile(r"```(sh|text)\n(.*?)```|^(Stop) `([^`]*)` with Ctrl-C", re.DOTALL | re.MULTILINE)
COMMAND_DEADLINE_S = 180.0
ARRIVAL_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0


class TutorialReader:
    """What runs on stays in a terminal of its own, by the first words of its command."""

    def __init__(self, directory: Path, ports: tuple[str, ...], terminals: ExitStack) -> None:
        self._directory, self._ports, self._terminals = directory, ports, terminals
        path = [str(Path(sys.executable).parent), str(binaries()), os.environ["PATH"]]
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("PGSLUICE_", "PG_FLO_", "PG"))}
        self._env |= {"PATH": os.pathsep.join(path), "PYTHONPATH": str(REPOSITORY), "HOME": str(directory)}
        self._exports = ""
        self._running: dict[str, ChildProcess] = {}

    def leave_running(self, command: str) -> None:
        """In place of one of the same words, which is interrupted before."""
        name = _terminal(command)
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
        commands = self._with_ports(block)
        match commands.split()[:2]:
            case ["make", "install"]:
                assert self.run("pgsluice version").startswith("pgsluice ")
            case ["make", "servers"]:
                self.leave_running(f"python -m tests.servers {' '.join(self._ports)}")
            case ["pgsluice", "replicator" | "worker"] if not re.search("[|>]", commands):
                self.leave_running(commands)
            case ["pgsluice", "drop"]:
                for name in [each for each in self._running if each.startswith("pgsluice")][::-1]:
                    self.interrupt(name)
                self.run(commands)
            case _:
                self.run(commands)

    def _with_ports(self, written: str) -> str:
        for port, here in zip(PORTS, self._ports, strict=True):
            written = written.replace(port, here)
        return written

    def expect(self, command: str, output: str) -> None:
        """``command`` prints ``output``, sooner or later."""
        command = self._with_ports(command)
        wait_until(
            lambda: self._bash(command).stdout.split() == output.split(),
            deadline_s=ARRIVAL_DEADLINE_S,
            what=f"{command}:\n{output}",
        )

    def read(self, page: str) -> int:
        """Follows all of it; how many outputs it shows."""
        steps = [(kind or stop, block or what) for kind, block, stop, what in _STEP.findall(page_text(page))]
        shown = [number for number, (kind, _) in enumerate(steps) if kind == "text"]
        for number, (kind, step) in enumerate(steps):
            if kind == "Stop":
                self.interrupt(f"pgsluice {step}")
            elif kind == "sh" and number + 1 not in shown:
                self.follow(step)
            elif kind == "sh":
                *first, last = step.splitlines()
                self.follow("\n".join(first))
                self.expect(last, output=steps[number + 1][1])
        self.interrupt("python -m")
        return len(shown)


def page_text(page: str) -> str:
    return (REPOSITORY / "docs" / page).read_text()


def _terminal(command: str) -> str:
    words = command.split()
    return " ".join(words[: 3 if words[1] == "worker" else 2])
