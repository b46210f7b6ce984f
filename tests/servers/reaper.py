"""Ends processes and removes directories when the process that registered them is gone.

Run as a program, it reads lines from standard input, which only the registering process holds open:

    process <pid> <signal>    send the signal at the end
    forget <pid>              it ended already
    directory <path>          remove it at the end
    removed <path>            it was removed already
    namespace <name>          delete the network namespace at the end
    deleted <name>            it was deleted already

At end of file (a regular exit or SIGKILL alike) it does what is still registered and exits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

GRACE_S = 5.0
"""How long processes get to end before their directories are removed."""


class Reaper:
    """The registering side: one reaper process per Python process, started when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def tell(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-E", str(Path(__file__))], stdin=subprocess.PIPE, text=True, start_new_session=True
                )
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def reap(lines: Iterable[str]) -> None:
    """Follows the lines above until they end, then ends and removes what is left."""
    signals: dict[int, int] = {}
    directories: dict[str, None] = {}
    namespaces: dict[str, None] = {}
    for line in lines:
        verb, _, rest = line.rstrip("\n").partition(" ")
        match verb:
            case "process":
                registered, _, number = rest.partition(" ")
                signals[int(registered)] = int(number)
            case "forget":
                signals.pop(int(rest), None)
            case "directory":
                directories[rest] = None
            case "removed":
                directories.pop(rest, None)
            case "namespace":
                namespaces[rest] = None
            case "deleted":
                namespaces.pop(rest, None)
            case _:
                raise ValueError(f"unknown line: {line!r}")
    for pid, signal_number in signals.items():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal_number)
    end = time.monotonic() + GRACE_S
    while any(map(_is_alive, signals)) and time.monotonic() < end:
        time.sleep(0.05)
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "delete", namespace], check=False)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    for terminal_signal in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(terminal_signal, signal.SIG_IGN)
    reap(sys.stdin)
