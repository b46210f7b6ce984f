"""``python -m tests.servers``: the servers of docs/tutorial.md, until the terminal interrupts them.

A source and a target PostgreSQL and a NATS server with JetStream, each new and empty. Ports are the tutorial's, unless they are
given: ``python -m tests.servers SOURCE_PORT TARGET_PORT NATS_PORT``.
"""

from __future__ import annotations

import signal
import sys

from tests.servers import NatsServer, PostgresServer

PORTS = ("5433", "5434", "4333")


def main(source_port: str, target_port: str, nats_port: str) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        PostgresServer(port=int(source_port)) as source,
        PostgresServer(port=int(target_port)) as target,
        NatsServer(port=int(nats_port), file_store="4GB") as nats,
    ):
        for server, name in ((source, "source"), (target, "target")):
            server.create_database("shop")
            print(f"{name}   postgresql://{server.user}@{server.host}:{server.port}/shop")
        print(f"NATS     {nats.url}")
        print("Ready. Ctrl-C ends the servers and removes what they hold.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping")


if __name__ == "__main__":
    main(*(sys.argv[1:] or PORTS))
