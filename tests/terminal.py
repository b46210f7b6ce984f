"""A program on a terminal of its own, and what can be read on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte
import yaml

from tests.servers.child import PrivateDirectory
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[1]


class Terminal:
    """``pgsluice <arguments>`` on a pseudo-terminal of ``columns`` by ``lines``, which xterm's language is written to.

    ``config`` is what its configuration file holds, ``env`` has variables beside the usual ones, and ``program`` is another
    installation than this checkout.
    """

    def __init__(
        self,
        *arguments: str,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        program: Path | None = None,
        columns: int = 100,
        lines: int = 30,
    ) -> None:
        self._directory = PrivateDirectory("terminal")
        here = [sys.executable, "-m", "pgsluice.console.program"]
        self._command = [*(here if program is None else [str(program)]), *arguments]
        self._env = ({"PYTHONPATH": str(REPOSITORY)} if program is None else {}) | dict(env or {})
        if config is not None:
            path = self._directory.path / "config.yaml"
            path.write_text(yaml.safe_dump(dict(config)))
            self._command += ["--config", str(path)]
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.written = b""
        """Everything that the program wrote, as it wrote it."""

    def __enter__(self) -> Self:
        self._master, slave = pty.openpty()
        self._size(self._screen.columns, self._screen.lines)
        ours = ("PGSLUICE_", "PG_FLO_", "COLUMNS", "LINES")  # the last two would stand for the terminal's size
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment = inherited | {"HOME": str(self._directory.path), "TERM": "xterm-256color"} | self._env
        self._process = subprocess.Popen(
            self._command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=self._directory.path,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._slave = slave  # kept open, so that its settings can be read when the program has ended
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._slave)
        self._reader.join()
        os.close(self._master)
        self._directory.remove()

    def lines(self) -> list[str]:
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, text: str, deadline_s: float = 30.0) -> None:
        """Raises at once when the program ends without it."""
        wait_until(
            lambda: text in self.text() or self._process.poll() is not None,
            deadline_s=deadline_s,
            what=f"{text!r} on the screen",
        )
        assert text in self.text(), self.text()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:
            self._screen.resize(lines, columns)
        self._size(columns, lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, deadline_s: float = 30.0) -> int:
        """The exit code."""
        return self._process.wait(deadline_s)

    @property
    def echoes(self) -> bool:
        """Whether what is typed appears, as it does at a shell's prompt."""
        return bool(termios.tcgetattr(self._slave)[3] & termios.ECHO)

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            while block := os.read(self._master, 65536):
                with self._lock:
                    self.written += block
                    self._stream.feed(block)


def _take_terminal() -> None:
    """In the child: its standard input becomes the terminal that Ctrl-C comes from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
