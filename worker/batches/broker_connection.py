"""One NATS connection per process, for code that is called synchronously: the planner process and Spark tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from nats.aio.client import Client

from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.event_loop import EventLoopThread

P = ParamSpec("P")
T = TypeVar("T")


class BrokerConnection:
    """Connects at the first call, and again at the next call when that failed with TransientError. ``role`` is what NATS's lists
    of connections call it, beside the group."""

    def __init__(self, settings: NatsSettings, group: str, role: str = "worker") -> None:
        self.names = GroupNames(group)
        self._settings = settings
        self._name = f"pgsluice {role} {group}"
        self._loop = EventLoopThread("pgsluice-nats")
        self._client: Client | None = None

    def ask(self, question: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **more: P.kwargs) -> T:
        """What ``await question(client, *arguments)`` returns or raises."""
        return self._loop.run(self._ask(question, *arguments, **more))

    async def _ask(self, question: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **more: P.kwargs) -> T:
        if self._client is None:
            self._client = await connect(self._settings, self._name)
        return await question(self._client, *arguments, **more)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._loop.run(disconnect(client))
        self._loop.close()


_connections: dict[tuple[NatsSettings, str, str], BrokerConnection] = {}


def process_connection(settings: NatsSettings, group: str, role: str = "worker") -> BrokerConnection:
    """This process's connection for that group and role; made at the first call and kept as long as the process."""
    key = (settings, group, role)
    connection = _connections.get(key)
    if connection is None:
        connection = _connections[key] = BrokerConnection(*key)
    return connection
