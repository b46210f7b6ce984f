"""``pgsluice`` itself as a process, with its configuration file and its captured output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

import yaml

from tests.servers.child import ChildProcess, PrivateDirectory, pause_tree
from tests.servers.fork_server import ForkedProcess, ForkServer
from tests.servers.lent_spark import LENDER, lender
from tests.waiting import DeadlineError, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
EXIT_DEADLINE_S = 150.0
CLEAN_END_S = 5.0

_fork_server = ForkServer()


class PgsluiceProcess:
    """``pgsluice <arguments> --config <file>``; ``config`` is what the file holds (no ``--config`` when it is None).

    ``start`` may be called again after the process ended; log and output go on in the same files. Environment variables
    ``PGSLUICE_*`` and ``PG_FLO_*`` of the caller are not passed on, those of ``env`` are. ``launcher`` is a command that runs
    another, as on a machine of ``machines``. Leaving the context kills what still runs.

    In a run of tests it is forked (``fork_server``) and borrows its Spark (``lent_spark``), which takes a tenth of the CPU time.
    ``is_fresh`` has a new interpreter started, which starts a JVM of its own: for tests of what only such a process shows, or
    that kill its JVM. Elsewhere each is fresh: benchmarks measure what people run.
    """

    may_fork: ClassVar[bool] = False
    """Set by ``tests/conftest.py``."""

    def __init__(
        self,
        *arguments: str,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        is_fresh: bool = False,
    ) -> None:
        self.role = " ".join(arguments[:1])
        self._directory = PrivateDirectory("program")
        self._arguments = list(arguments)
        if config is not None:
            self.config_path.write_text(yaml.safe_dump(dict(config)))
            self._arguments += ["--config", str(self.config_path)]
        self._command = [*launcher, sys.executable, "-m", "pgsluice.console.program", *self._arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PGSLUICE_", "PG_FLO_"))}
        self._env = inherited | {"PYTHONPATH": str(REPOSITORY), "HOME": str(self._directory.path)} | dict(env or {})
        is_plain = all(name == "HOME" or name.startswith(("PGSLUICE_", "PG_FLO_")) for name in env or {})
        self._is_forked = self.may_fork and is_plain and not launcher and not is_fresh
        if self._is_forked:
            self._env[LENDER] = lender.address
        self._process: ChildProcess | None = None

    @property
    def config_path(self) -> Path:
        return self._directory.path / "config.yaml"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def start(self) -> Self:
        assert not self.is_running, "the process is running already"
        self._process = ChildProcess(
            self._command,
            log_path=self._directory.path / "stderr",
            stdout_path=self._directory.path / "stdout",
            cwd=self._directory.path,
            env=self._env,
            start=self._fork if self._is_forked else None,
        )
        return self

    def _fork(self, stdout: IO[bytes], stderr: IO[bytes]) -> ForkedProcess:
        return _fork_server.start(self._arguments, stdout, stderr, self._env, self._directory.path)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def _started(self) -> ChildProcess:
        assert self._process is not None, "the process was not started"
        return self._process

    def log(self) -> str:
        """Standard error of all starts so far."""
        return (self._directory.path / "stderr").read_text(errors="replace")

    def stdout(self) -> str:
        """Standard output of all starts so far."""
        return (self._directory.path / "stdout").read_text(errors="replace")

    def memory_bytes(self) -> int:
        return self._started.memory_bytes()

    def terminate(self) -> None:
        """SIGTERM to the process itself; ``wait`` for its end."""
        self._started.send(signal.SIGTERM)

    def signal_all(self, number: int) -> None:
        """The signal to it and to all its descendants, as systemd stops a service."""
        self._started.send_all(number)

    def pause_all(self) -> None:
        """SIGSTOP to it and to all its descendants; none of them runs when this returns."""
        pause_tree(self.pid)

    def kill(self) -> None:
        """SIGKILL to it and all its descendants (the JVM and its Python workers among them)."""
        self._started.kill()

    def wait(self, deadline_s: float = EXIT_DEADLINE_S) -> int:
        """The exit code, negative for a signal."""
        return self._started.wait(deadline_s)

    def wait_for_log(self, text: str, deadline_s: float = EXIT_DEADLINE_S) -> None:
        """Returns when ``text`` is in the log; raises at once when the process ended without it."""
        if not wait_until(
            lambda: text in self.log() or not self.is_running, deadline_s=deadline_s, what=f"log line with {text!r}"
        ):
            return
        if text not in self.log():
            raise AssertionError(f"the process ended with {self._started.poll()} without logging {text!r}: {self.log()}")

    def close(self) -> None:
        """Ends it if it runs, and removes its files. A forked process is asked to end first, so that it gives back its JVM."""
        if self._is_forked and self.is_running:
            self.terminate()
            with suppress(DeadlineError):
                self._started.wait(CLEAN_END_S)
        if self.is_running:
            self.kill()
        self._directory.remove()
