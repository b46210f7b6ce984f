"""Asking NATS from code that is called synchronously: the worker's driver, and Spark tasks with one connection per process."""

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
    """A group's broker, over a ``client`` that its creator closes, running on ``loop``."""

    def __init__(self, names: GroupNames, loop: EventLoopThread, client: Client | None) -> None:
        self.names = names
        self._loop = loop
        self._client = client

    def ask(self, question: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **more: P.kwargs) -> T:
        """Returns the result of ``await question(client, *arguments)``, or raises its error."""
        return self._loop.run(self._ask(question, *arguments, **more))

    async def _ask(self, question: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **more: P.kwargs) -> T:
        return await question(await self._connected(), *arguments, **more)

    async def _connected(self) -> Client:
        assert self._client is not None, "given when this was made"
        return self._client


class OwnConnection(BrokerConnection):
    """Connects at the first call, and again at the next call when that failed with TransientError. ``role`` is its name
    in NATS's lists of connections, in addition to the group."""

    def __init__(self, settings: NatsSettings, group: str, role: str = "worker") -> None:
        super().__init__(GroupNames(group), EventLoopThread("pgsluice-nats"), None)
        self._settings = settings
        self._name = f"pgsluice {role} {group}"

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await connect(self._settings, self._name)
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._loop.run(disconnect(client))
        self._loop.close()


_connections: dict[tuple[NatsSettings, str, str], OwnConnection] = {}


def process_connection(settings: NatsSettings, group: str, role: str = "worker") -> OwnConnection:
    """Returns this process's connection for that group and role; made at the first call and kept as long as the
    process."""
    key = (settings, group, role)
    connection = _connections.get(key)
    if connection is None:
        connection = _connections[key] = OwnConnection(*key)
    return connection
