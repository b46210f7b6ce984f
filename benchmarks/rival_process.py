"""A program of others that is measured beside ours, in a private directory, from its start to its end."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.child import STOP_DEADLINE_S, ChildProcess, PrivateDirectory


class RivalProcess(ABC):
    """Runs within the context, which shows the end of its log when that ends with an error."""

    def __init__(self, name: str) -> None:
        self._private = PrivateDirectory(name)
        self._process: ChildProcess | None = None

    @abstractmethod
    def _start(self, directory: Path, log: Path) -> ChildProcess:
        """Its output is to be in ``log``."""

    @property
    def directory(self) -> Path:
        return self._private.path

    def __enter__(self) -> Self:
        self._process = self._start(self.directory, self.directory / "log")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._process is not None
        if kind is not None:
            print(self.log()[-6000:])
        self._process.send(signal.SIGTERM)
        self._process.wait(STOP_DEADLINE_S)
        self._private.remove()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")
