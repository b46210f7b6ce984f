"""The contestant: PostgreSQL's own logical replication."""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers import Database
from tests.waiting import wait_until

PUBLICATION = "native"


class Subscription:
    """One subscription to ``tables``: with a slot that exists before the subscription does, so that a backlog can wait in it
    (``create_slot``, ``create``, ``enable``), or one that copies what is there (``copy``).

    PostgreSQL's defaults hold for all its options.
    """

    def __init__(self, name: str, source: Database, tables: Sequence[str]) -> None:
        self._name = name
        self._source = source
        self._tables = tables
        self._target: Database | None = None

    def create_slot(self) -> None:
        """What is committed from now on waits for ``enable``."""
        self._publish()
        self._source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._name])

    def create(self, target: Database) -> None:
        self._target = target
        target.execute(
            f"CREATE SUBSCRIPTION {self._name} CONNECTION '{self._source.server.dsn(self._source.dbname)}'"
            f" PUBLICATION {PUBLICATION}"
            f" WITH (create_slot = false, slot_name = '{self._name}', copy_data = false, enabled = false)"
        )

    def copy(self, target: Database) -> None:
        """Returns when the subscription is there, with its slot, and begins to copy."""
        self._publish()
        self._target = target
        target.execute(
            f"CREATE SUBSCRIPTION {self._name} CONNECTION '{self._source.server.dsn(self._source.dbname)}'"
            f" PUBLICATION {PUBLICATION}"
        )

    def wait_until_copied(self, deadline_s: float) -> None:
        """For every table to be copied and caught up with."""
        assert self._target is not None
        target = self._target
        wait_until(
            lambda: not target.execute("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'"),
            deadline_s=deadline_s,
            what=f"copies of subscription {self._name}",
        )

    def _publish(self) -> None:
        if not self._source.execute("SELECT FROM pg_publication WHERE pubname = %s", [PUBLICATION]):
            self._source.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(self._tables)}")

    def enable(self) -> None:
        self._at_target(f"ALTER SUBSCRIPTION {self._name} ENABLE")

    def drop(self) -> None:
        """The subscription and its slot."""
        self._at_target(f"ALTER SUBSCRIPTION {self._name} DISABLE")
        wait_until(self._is_idle, what=f"end of subscription {self._name}")
        self._at_target(f"DROP SUBSCRIPTION {self._name}")

    def _is_idle(self) -> bool:
        return not self._source.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", [self._name])

    def _at_target(self, statement: str) -> None:
        assert self._target is not None
        self._target.execute(statement)
