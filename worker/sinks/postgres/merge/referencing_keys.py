"""Foreign keys of the target that point to the tables which a batch deletes rows of.

They matter where they are checked: in a session whose role may not set session_replication_role. There an ON DELETE CASCADE or
SET NULL of the target would take or change rows that the source still has. A row whose deletion would do that is refused instead,
as by a foreign key without such an action. What refers to it at the source has left before: deletions wait for the end of the
batch (``merge``). Rows that only the target has are its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.worker.sinks.postgres.merge.statements import on_old_key
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection
from pgsluice.worker.sinks.postgres.target.table import TargetTable

_POINTING_TO = sql.SQL("""
SELECT r.conname, n.nspname, c.relname, r.conrelid, r.confdeltype IN ('c', 'n', 'd') AND EXISTS (
           SELECT FROM {} AS known
            WHERE known.target_oid IN (SELECT r.conrelid UNION SELECT relid FROM pg_partition_tree(r.conrelid)
                                       UNION SELECT relid FROM pg_partition_ancestors(r.conrelid))),
       ARRAY(SELECT a.attname::text FROM unnest(r.conkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = r.conrelid AND a.attnum = k.number ORDER BY k.place),
       ARRAY(SELECT a.attname::text FROM unnest(r.confkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = r.confrelid AND a.attnum = k.number ORDER BY k.place)
  FROM pg_constraint r JOIN pg_class c ON c.oid = r.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.contype = 'f' AND r.confrelid = %s::oid
 ORDER BY r.oid
""").format(own_table("tables"))

_REFUSE = """
BEGIN
    IF EXISTS (SELECT FROM {children} AS child JOIN {parents} AS target ON {refers} JOIN {stage} AS staged ON {same_row}
               {unless}) THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation', MESSAGE = {message}, SCHEMA = {schema}, TABLE = {table},
                              CONSTRAINT = {constraint};
    END IF;
END
"""


@dataclass(frozen=True, slots=True)
class _ReferencingKey:
    """``acts``: it would take or change rows of a table that is replicated."""

    name: str
    schema: str
    table: str
    oid: int
    acts: bool
    columns: Sequence[str]
    referenced: Sequence[str]

    def refusal(self, target: TargetTable, stage: sql.Composable) -> sql.Composed:
        """Raises a foreign key violation if a row of the target's table that is in ``stage`` is referred to by another one."""
        refers = sql.SQL(" AND ").join(
            sql.SQL("child.{} = target.{}").format(sql.Identifier(own), sql.Identifier(other))
            for own, other in zip(self.columns, self.referenced, strict=True)
        )
        unless: sql.Composable = sql.SQL("")
        if self.oid == target.oid:  # rows that go together may refer to each other
            unless = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} AS staged WHERE {})").format(
                stage, on_old_key(target, sql.SQL("child"))
            )
        body = sql.SQL(_REFUSE).format(
            children=sql.Identifier(self.schema, self.table),
            parents=target.rows,
            refers=refers,
            stage=stage,
            same_row=on_old_key(target, sql.SQL("target")),
            unless=unless,
            message=sql.Literal(f"foreign key {self.name} would take or change rows that the source still has"),
            schema=sql.Literal(self.schema),
            table=sql.Literal(self.table),
            constraint=sql.Literal(self.name),
        )
        return sql.SQL("DO {}").format(sql.Literal(body.as_string()))


class ReferencingKeys:
    """Of one session; each table is looked at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: dict[int, list[_ReferencingKey]] = {}

    def forget(self) -> None:
        self._found.clear()

    def point_to(self, target: TargetTable) -> bool:
        return bool(self._of(target))

    def refusals(self, target: TargetTable, stage: sql.Composable) -> list[sql.Composed]:
        """To be run before rows are deleted whose keys ``stage`` holds."""
        return [key.refusal(target, stage) for key in self._of(target) if key.acts]

    def _of(self, target: TargetTable) -> list[_ReferencingKey]:
        if target.oid not in self._found:
            rows = self._connection.execute(_POINTING_TO, [target.oid]).fetchall()
            self._found[target.oid] = [_ReferencingKey(*row) for row in rows]
        return self._found[target.oid]
