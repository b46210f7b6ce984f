"""The servers of a benchmark: source, target and NATS, set up as one would for production, and alike for every contestant."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.servers import NatsServer, PostgresServer

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",  # no checkpoint by size, and none by time, falls into a measurement
    "checkpoint_timeout": "1h",
    "max_connections": "50",
}
"""Beside PostgreSQL's defaults: fsync, full_page_writes, synchronous_commit and autovacuum are on."""


@dataclass(frozen=True, slots=True)
class Servers:
    source: PostgresServer
    target: PostgresServer
    nats: NatsServer

    def roots(self) -> dict[str, int]:
        """The process at the root of each part, as ``ProcessWatch`` takes them; the benchmark itself is one."""
        return {
            "source postgres": self.source.pid,
            "nats": self.nats.pid,
            "target postgres": self.target.pid,
            "benchmark": os.getpid(),
        }

    def settle(self) -> None:
        """Writes out what is dirty, so that no contestant pays for another's pages."""
        for server in (self.source, self.target):
            with server.connect() as connection:
                connection.execute("CHECKPOINT")


@contextlib.contextmanager
def start_servers(
    *, source_settings: Mapping[str, str] | None = None, target_settings: Mapping[str, str] | None = None
) -> Iterator[Servers]:
    """Three new servers, which are stopped and removed at the end."""
    with (
        PostgresServer(SETTINGS | dict(source_settings or {}), durable=True) as source,
        PostgresServer(SETTINGS | dict(target_settings or {}), durable=True) as target,
        NatsServer() as nats,
    ):
        yield Servers(source, target, nats)
