"""Rows that will replace all rows of a table: they wait in a separate table until they are whole.

That table, in schema ``pgsluice``, is like the target's: it has its columns, constraints and indexes, so rows that the
target would refuse are refused when they are loaded. It is logged, because it outlives the batch that fills it.

When the run is whole one transaction, the one that moves the position, makes the target's table hold these rows and no
others: rows whose key is gone are deleted, new ones inserted, others updated where they differ. So the table stays what
it is, with its grants, views, foreign keys and triggers; readers never wait, and find the old rows or the new ones; and
unchanged rows are not written. Others that write to the table wait meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from psycopg import sql

from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.worker.sinks.postgres.merge.statements import exchange_statements
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.failure import MEETS_ANOTHER
from pgsluice.worker.sinks.postgres.target.table import TargetTable

_CREATE = (
    "CREATE TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY INCLUDING INDEXES"
    " INCLUDING STORAGE)"
)
_LOCK = "LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE"


@dataclass(frozen=True, slots=True)
class Replacements:
    """The replacements of one worker of one group. Each method except ``waiting`` belongs into the transaction that
    moves the position."""

    group: str
    worker: str

    def waiting(self, target: TargetTable) -> TargetTable:
        """Returns the table where rows wait that will replace the rows of ``target``."""
        return replace(target, place=(TARGET_SCHEMA, self._name(target)), is_partitioned=False, has_rules=False)

    def forget(self, connection: Connection, target: TargetTable) -> None:
        """Forgets rows of a run that will never be whole."""
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(own_table(self._name(target))))

    def begin(self, connection: Connection, target: TargetTable) -> None:
        self.forget(connection, target)
        connection.execute(sql.SQL(_CREATE).format(own_table(self._name(target)), target.identifier))

    def finish(self, connection: Connection, target: TargetTable) -> int:
        """Makes the target's table hold the rows that waited, and no others, from the commit on; returns how many of
        them existed already."""
        waiting = own_table(self._name(target))
        connection.execute(sql.SQL(_LOCK).format(target.identifier))
        connection.execute(sql.SQL("ANALYZE {}").format(waiting))
        may_update = bool(target.table.key) and target.fixed.issubset(target.table.key)
        exchange = partial(exchange_statements, target, waiting)
        try:
            written = _execute(connection, exchange(by_key=may_update))
        except MEETS_ANOTHER:  # rows that exchange a unique value cannot be updated one after the other
            written = _execute(connection, exchange(by_key=False))
        [(waited,)] = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(waiting)).fetchall()
        self.forget(connection, target)
        return int(waited) - written

    def _name(self, target: TargetTable) -> str:
        """Returns a short name, other than the table's: an identifier has 63 bytes."""
        owner = hashlib.blake2b(f"{self.group}/{self.worker}".encode(), digest_size=6).hexdigest()
        return f"waiting_{owner}_{target.oid}"


def _execute(connection: Connection, statements: Sequence[sql.Composed]) -> int:
    """Executes statements; returns how many rows they wrote, without the first one, which deletes."""
    with connection.transaction():
        return sum([connection.execute(statement).rowcount for statement in statements][1:])
