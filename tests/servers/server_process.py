"""What the servers that tests start have in common: a process, its private directory and a port, from start to removal."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.servers.child import HOST, STOP_DEADLINE_S, ChildProcess, PrivateDirectory, free_port, pause
from tests.waiting import wait_until

START_ATTEMPTS = 5
PORT_IS_TAKEN = "address already in use"


class ServerProcess(ABC):
    """``start`` after ``stop`` or ``kill`` goes on with the same data and port. Leaving the context kills the server and removes
    its directory.

    A port that somebody else took is exchanged at a start, unless it was asked for or clients may know it: after the first start
    that succeeded.
    """

    title: ClassVar[str]
    """As errors call it."""
    purpose: ClassVar[str]
    """Of the directory, in its name."""
    start_deadline_s: ClassVar[float]

    def __init__(self, port: int = 0, host: str = HOST) -> None:
        self.host = host
        self.port = port or free_port()
        self._may_move = port == 0
        self._private: PrivateDirectory | None = None
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def _spawn(self, directory: Path, log: Path) -> ChildProcess:
        """Its output is to be in ``log``."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether clients are served. Asked while the process runs; may raise OSError, which is a no."""

    def _new_directory(self) -> PrivateDirectory:
        """With what has to be there before the first start."""
        return PrivateDirectory(self.purpose)

    @property
    def directory(self) -> Path:
        if self._private is None:
            self._private = self._new_directory()
        return self._private.path

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.title} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Of all its lives."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Returns when clients are served."""
        assert not self.is_running, f"{self.title} is running already"
        for _ in range(START_ATTEMPTS):
            before = len(self.log())
            self._process = self._spawn(self.directory, self.directory / "log")
            if wait_until(self._outcome, deadline_s=self.start_deadline_s, what=f"start of {self.title}") is True:
                self._may_move = False
                return
            said = self.log()[before:]
            if not (self._may_move and PORT_IS_TAKEN in said.lower()):
                break
            self.port = free_port()
        raise RuntimeError(f"{self.title} did not start: {said}")

    def _outcome(self) -> bool | str:
        """Of a start: True, False ("not yet") or "ended"."""
        if not self.is_running:
            return "ended"
        try:
            return self._answers()
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """A clean stop, by that signal. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(number)
            self._process.wait(STOP_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL to it and to every process that it started."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """It stops in its tracks, with all its connections open, and stands still when this returns."""
        pause(self.pid)

    def resume(self) -> None:
        """Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It goes on after the block, however that ends."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Kills the server and removes what it holds."""
        if self._private is None:
            return
        self.kill()
        self._private.remove()
        self._private = self._process = None
