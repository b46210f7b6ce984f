"""One group of the real program on real servers: a replicator and a Postgres worker as child processes."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tests.servers import Database, NatsCluster, NatsServer, PgsluiceProcess


def configuration(
    group: str, source: Database, target: Database | None, nats: NatsServer | NatsCluster, **more: Any
) -> dict[str, Any]:
    """The YAML keys that both roles need, as a user would write them."""
    keys: dict[str, Any] = {"group": group, "nats-url": nats.url, "schema": "public", "log-level": "info"}
    keys |= {
        "host": source.settings.host,
        "port": source.settings.port,
        "dbname": source.settings.dbname,
        "user": source.settings.user,
        "password": source.settings.password or "unused",
    }
    if target is not None:
        keys |= {f"target-{key}": getattr(target.settings, key) for key in ("host", "port", "dbname", "user")}
        keys["target-password"] = target.settings.password or "unused"
    return keys | {"spark": {"master": "local[2]", "memory": "512m"}} | more


class GroupUnderTest:
    """Both processes of a group; each can be killed and started again under the same configuration. ``is_fresh`` as of a
    ``PgsluiceProcess``."""

    def __init__(self, keys: dict[str, Any], *, is_fresh: bool = False) -> None:
        self.keys = keys
        self.replicator = PgsluiceProcess("replicator", config=keys, is_fresh=is_fresh)
        self.worker = PgsluiceProcess("worker", "postgres", config=keys, is_fresh=is_fresh)

    def __enter__(self) -> Self:
        self.replicator.start()
        self.worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            print("replicator:", self.replicator.log()[-4000:], "worker:", self.worker.log()[-4000:], sep="\n")
        self.worker.close()
        self.replicator.close()
