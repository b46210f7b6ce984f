"""Three real nats-servers as one JetStream cluster, whose nodes can be killed, paused and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import nats
import nats.errors
import nats.js.errors
import orjson

from pgsluice.shared.config.settings import NatsSettings
from tests.servers.child import HOST, free_port
from tests.servers.nats import NatsServer
from tests.waiting import wait_until

READY_DEADLINE_S = 300.0
ELECTION_DEADLINE_S = 60.0  # nats-server waits 4 to 9 s for a leader that is silent
REQUEST_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node runs; ``launcher`` as ``NatsServer`` has it."""

    host: str = HOST
    launcher: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class NatsCluster:
    """Leaving the context stops all nodes and removes their stores. A node that was killed is started again by its ``start``."""

    def __init__(self, places: Sequence[NodePlace] = (NodePlace(),) * 3) -> None:
        ports: list[int] = []
        while len(ports) < 2 * len(places):
            port = free_port()
            if port not in ports:
                ports.append(port)
        routes = ", ".join(f'"nats://{place.host}:{port}"' for place, port in zip(places, ports, strict=False))
        self.nodes = [_node(*each, routes) for each in zip(places, ports[len(places) :], ports, strict=False)]
        self._paused: set[NatsServer] = set()

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    @property
    def url(self) -> str:
        """All nodes, as ``nats-url`` takes them."""
        return ",".join(node.url for node in self.nodes)

    def settings(self, *nodes: NatsServer) -> NatsSettings:
        """Of a client of ``nodes``, or of all."""
        return NatsSettings.of_url(",".join(node.url for node in nodes or self.nodes))

    def wait_until_ready(self) -> None:
        """Returns when all nodes that run know a leader that answers for JetStream."""
        for node in self._answering:
            wait_until(
                lambda node=node: self._ask("INFO", node) is not None,  # type: ignore[misc]
                deadline_s=READY_DEADLINE_S,
                what=f"JetStream at {node.url}",
                interval_s=0.1,
            )

    def leader_of(self, stream: str) -> NatsServer:
        """Waits for one. The node may be another a moment later."""
        name = wait_until(
            lambda: self._replicas(stream).get("leader"),
            deadline_s=ELECTION_DEADLINE_S,
            what=f"leader of {stream}",
            interval_s=0.1,
        )
        assert name is not None
        return self._node(name)

    def followers_of(self, stream: str) -> list[NatsServer]:
        leader = self.leader_of(stream)
        return [node for node in self.nodes if node is not leader]

    def wait_until_current(self, stream: str) -> None:
        """Returns when the stream has a leader and every other replica of it has all that the leader has."""

        def is_current() -> bool:
            replicas = self._replicas(stream)
            others = replicas.get("replicas") or []
            return bool(replicas.get("leader")) and len(others) == len(self.nodes) - 1 and all(r["current"] for r in others)

        wait_until(is_current, deadline_s=READY_DEADLINE_S, what=lambda: f"all of {self._replicas(stream)}", interval_s=0.1)

    def kill_leader(self, stream: str) -> NatsServer:
        """SIGKILL to the leader; ``start`` it again on the same store."""
        leader = self.leader_of(stream)
        leader.kill()
        return leader

    def pause(self, node: NatsServer) -> None:
        """The node stops in its tracks, with all its connections open. It stands still when this returns."""
        self._paused.add(node)
        node.pause()

    def resume(self, node: NatsServer) -> None:
        node.resume()
        self._paused.discard(node)

    @contextmanager
    def paused(self, *nodes: NatsServer) -> Iterator[None]:
        """They go on after the block, however it ends."""
        try:
            for node in nodes:
                self.pause(node)
            yield
        finally:
            for node in nodes:
                self.resume(node)

    @property
    def _answering(self) -> list[NatsServer]:
        return [node for node in self.nodes if node.is_running and node not in self._paused]

    def _node(self, name: str) -> NatsServer:
        return next(node for node in self.nodes if node.name == name)

    def _replicas(self, stream: str) -> dict[str, Any]:
        """What the stream's leader says of its replicas; nothing without a leader."""
        information = self._ask(f"STREAM.INFO.{stream}", *self._answering) or {}
        return dict(information.get("cluster") or {})

    def _ask(self, request: str, *nodes: NatsServer) -> dict[str, Any] | None:
        with ThreadPoolExecutor(1) as thread:  # the caller may be a coroutine
            return thread.submit(asyncio.run, _ask([node.url for node in nodes], request)).result()


def _node(place: NodePlace, port: int, cluster_port: int, routes: str) -> NatsServer:
    tags = ", ".join(f'"{tag}"' for tag in place.tags)
    config = _CLUSTER.format(host=place.host, port=cluster_port, routes=routes, tags=tags)
    return NatsServer(port=port, config=config, host=place.host, launcher=place.launcher)


async def _ask(servers: list[str], request: str) -> dict[str, Any] | None:
    """The answer of JetStream's API; None without one, or when it is an error."""
    try:
        client = await nats.connect(servers, allow_reconnect=False, connect_timeout=2)
    except (OSError, nats.errors.Error):
        return None
    try:
        answer = await client.request(f"$JS.API.{request}", timeout=REQUEST_TIMEOUT_S)
        content: dict[str, Any] = orjson.loads(answer.data)
    except (nats.errors.Error, TimeoutError):
        return None
    finally:
        await client.close()
    return None if "error" in content else content


_CLUSTER = """
server_tags: [{tags}]
cluster {{
  name: pgsluice
  listen: "{host}:{port}"
  routes: [{routes}]
}}
"""
