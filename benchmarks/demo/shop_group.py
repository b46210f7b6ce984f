"""The demo's group: its servers, the one configuration of its processes, and how they are waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import DeadlineError, wait_until

GROUP = "demo"
START_DEADLINE_S = 60.0


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@contextlib.contextmanager
def servers() -> Iterator[tuple[Database, Database, NatsServer]]:
    with PostgresServer() as source, PostgresServer() as target, NatsServer() as nats:
        yield source.create_database("shop"), target.create_database("shop_copy"), nats


def configuration(source: Database, target: Database, nats: NatsServer) -> dict[str, object]:
    """One file for both processes."""
    return {
        "group": GROUP,
        "nats-url": nats.url,
        "host": source.server.host,
        "port": source.server.port,
        "dbname": source.dbname,
        "user": source.server.user,
        "schema": "public",
        "target-host": target.server.host,
        "target-port": target.server.port,
        "target-dbname": target.dbname,
        "target-user": target.server.user,
        "target-sync-schema": True,
        "copy-and-stream": True,
        "copy-range-bytes": "512KiB",  # small, like the shop: so that a copy of a second has steps to be seen
    }


def wait_for_slot(source: Database, slot: str, replicator: PgsluiceProcess) -> None:
    """Returns when the replicator streams from its slot: what is written from then on is replicated."""

    def is_active_or_over() -> bool:
        active = source.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", [slot])
        return bool(active) or not replicator.is_running

    try:
        wait_until(is_active_or_over, deadline_s=START_DEADLINE_S, what="the replicator's start")
    except DeadlineError as error:
        raise DemoError(f"{error}:\n{log_end(replicator)}") from None
    if not replicator.is_running:
        raise DemoError(f"the replicator ended with exit code {replicator.wait()}:\n{log_end(replicator)}")


def log_end(process: PgsluiceProcess) -> str:
    return process.log()[-3000:]
