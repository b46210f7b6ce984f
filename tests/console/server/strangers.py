"""A client that reaches the broker and not the API, and a host of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

from tests.console.control_records import write_record
from tests.servers import NatsServer


def write_document(nats: NatsServer, key: str, group: str, **settings: object) -> None:
    """Behind the API's back: ``group`` is who it says that it is of."""
    given = {"group": group} | {name.replace("_", "-"): value for name, value in settings.items()}
    record = {"group": group, "settings": given, "applied_at": "", "applied_by": "mallory"}
    write_record(nats, f"group.{key}", json.dumps(record).encode())


class Listener:
    """A host that takes what is sent to it and says ``answer``, then hears what comes of that."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.port = int(listening.getsockname()[1])
        self.heard: list[bytes] = []
        self.answer = b""

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    self.heard.append(connection.recv(65536))
                    if self.answer:
                        connection.sendall(self.answer)
                        self.heard.append(connection.recv(65536))


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = Listener(server)
        thread = threading.Thread(target=listener.run, daemon=True)
        thread.start()
        yield listener
        server.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=10)
