"""``pgsluice`` processes forked from one that has imported the program already: a start costs 10 ms instead of half a second.

The process that is forked is a session of its own with its own files, directory and environment, runs the program's ``main``,
and ends as any Python process does. What only a fresh interpreter shows (its arguments in the process list, what it imports,
variables that Python reads at its start) needs a fresh one.

The server takes requests from the socket that is its standard input. Each comes as one message with four descriptors: standard
output, standard error, and the writing ends of two pipes, for the process id and for the exit status.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from pgsluice.console.flags import settings_by_command

_REPOSITORY = Path(__file__).resolve().parents[2]
_LARGEST_REQUEST = 1 << 20

_PRELOADED = (
    "pgsluice.console.commands",
    "pgsluice.console.dead",
    "pgsluice.console.program",
    "pgsluice.console.server.server",
    "pgsluice.console.status",
    "pgsluice.console.tables",
    "pgsluice.console.worker",
    "pgsluice.replicator.pipelines.pipeline_run",
    "pgsluice.replicator.replicator",
    "pgsluice.replicator.snapshot.snapshot",
    "pgsluice.replicator.snapshot.spark_job",
    "pgsluice.shared.spark.session",
    "pgsluice.worker.sinks.postgres.sink",
    "pgsluice.worker.worker",
)
"""What the commands load that tests start often; a command that loads more does so by itself."""


class ForkedProcess:
    """A child of the fork server; what of ``subprocess.Popen`` is used of it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._exit_code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """From any thread: one may kill the process while another supervises it."""
        with self._lock:
            if self._exit_code is None and self._has_told():
                told = os.read(self._status, 4)
                os.close(self._status)
                # Nothing is told when the fork server itself was killed, and its children are nobody's.
                self._exit_code = struct.unpack("i", told)[0] if told else -signal.SIGKILL
            return self._exit_code

    def _has_told(self) -> bool:
        """Not by select(2), which takes no descriptor above 1023."""
        looking = select.poll()
        looking.register(self._status, select.POLLIN)
        return bool(looking.poll(0))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """Started with the first request; one for each Python process that asks."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def start(
        self, arguments: Sequence[str], stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str], cwd: Path
    ) -> ForkedProcess:
        """A process that runs ``pgsluice`` with these arguments."""
        pid_in, pid_out = os.pipe()
        status_in, status_out = os.pipe()
        descriptors = [stdout.fileno(), stderr.fileno(), pid_out, status_out]
        request = pickle.dumps((list(arguments), dict(env), str(cwd)))
        try:
            with self._lock:
                socket.send_fds(self._connection(), [request], descriptors)
            os.close(pid_out)
            told = os.read(pid_in, 4)
            if not told:
                raise RuntimeError("the server that forks the program is gone")
        finally:
            for descriptor in (pid_in, status_out):
                os.close(descriptor)
        return ForkedProcess(struct.unpack("i", told)[0], status_in)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
            with theirs:
                command = [sys.executable, "-c", "from tests.servers.fork_server import serve; serve()"]
                environment = os.environ | {"PYTHONPATH": str(_REPOSITORY)}
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), cwd=_REPOSITORY, env=environment, start_new_session=True
                )
            self._socket = ours
        return self._socket


def _wait_for_requests() -> tuple[list[str], dict[str, str]] | None:
    """Returns in a forked process, with what it is to run; and in the server itself, with None, when its owner is gone."""
    running: dict[int, int] = {}
    requests = socket.socket(fileno=0)
    ended_in, ended_out = os.pipe()
    os.set_blocking(ended_out, False)
    signal.set_wakeup_fd(ended_out)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), ended_in], [], [])
        if ended_in in ready:
            os.read(ended_in, 4096)
            _tell_ends(running)
        if requests.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
            if not request:
                return None
            arguments, environment, directory = pickle.loads(request)
            stdout, stderr, tells_pid, tells_status = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                os.chdir(directory)
                nothing = os.open(os.devnull, os.O_RDONLY)
                for standard, given in enumerate((nothing, stdout, stderr)):
                    os.dup2(given, standard)
                os.write(tells_pid, struct.pack("i", os.getpid()))
                requests.detach()
                for descriptor in (nothing, *descriptors, ended_in, ended_out, *running.values()):
                    os.close(descriptor)
                return arguments, environment
            running[pid] = tells_status
            for descriptor in (stdout, stderr, tells_pid):
                os.close(descriptor)


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        os.write(running[pid], struct.pack("i", os.waitstatus_to_exitcode(status)))
        os.close(running.pop(pid))


def serve() -> None:
    """What the server runs; it goes on in each forked process as the program."""
    for module in _PRELOADED:
        importlib.import_module(module)
    settings_by_command()  # the options of all sinks, which each command looks through
    gc.collect()
    gc.freeze()  # what all of them share; else each looks at it, and so copies its pages
    forked = _wait_for_requests()
    if forked is not None:
        from pgsluice.console.program import main
        from tests.servers.lent_spark import LENDER, borrow_from_now_on

        arguments, environment = forked
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        borrow_from_now_on(environment[LENDER])
        main(arguments)
