"""``python -m tests.servers``: the servers of docs/tutorial.md, until the terminal interrupts them.

A source and a target PostgreSQL, a NATS server with JetStream, and a search server that keeps its indexes in memory, each new and
empty. Ports are the tutorial's, unless they are given: ``python -m tests.servers SOURCE_PORT TARGET_PORT NATS_PORT SEARCH_PORT``.
"""

from __future__ import annotations

import signal
import sys

from tests.servers import NatsServer, PostgresServer
from tests.servers.opensearch import FakeOpenSearch

PORTS = ("5433", "5434", "4333", "9250")


def main(source_port: str, target_port: str, nats_port: str, search_port: str) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        PostgresServer(port=int(source_port)) as source,
        PostgresServer(port=int(target_port)) as target,
        NatsServer(port=int(nats_port), file_store="4GB") as nats,
        FakeOpenSearch(int(search_port)) as search,
    ):
        for server, name in ((source, "source"), (target, "target")):
            server.create_database("shop")
            print(f"{name}   postgresql://{server.user}@{server.host}:{server.port}/shop")
        print(f"NATS     {nats.url}")
        print(f"search   {search.url}")
        print("Ready. Ctrl-C ends the servers and removes what they hold.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping")


if __name__ == "__main__":
    main(*(sys.argv[1:] or PORTS))
