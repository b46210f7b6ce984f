"""Foreign keys of the target that point to the tables which a batch changes.

They matter where they are checked: in a session whose role may not set session_replication_role. There their actions would take
or change rows that the source still has.

ON DELETE: a row whose deletion would be carried on is refused, as by a foreign key without an action. What refers to it at the
source has left before: deletions wait for the end of the batch (``merge``).
ON UPDATE: the action takes its course, for the source's own changes of the rows that it changes follow in the batch. Those rows
are noted, and taken off the list when their own changes are applied. What is left at the end of the batch stops the worker.

Rows that only the target has are its own affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.postgres.fold.piece import MOVES, PieceKind
from pgsluice.worker.sinks.postgres.merge.statements import key_texts, same_key, sent_value
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection, grant_of_replica_role
from pgsluice.worker.sinks.postgres.target.table import TargetTable

_UPDATES = (*MOVES, PieceKind.UPSERT, PieceKind.PATCH)
_KEYS_OF = {PieceKind.DELETE: "k", PieceKind.MOVE: "ck", PieceKind.MOVE_IN_ORDER: "ck"}
"""In which columns of a stage keys are."""

_POINTING_TO = sql.SQL("""
SELECT r.conname, n.nspname, c.relname, r.conrelid, r.confdeltype IN ('c', 'n', 'd'), r.confupdtype IN ('c', 'n', 'd'),
       EXISTS (SELECT FROM {} AS known
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
    """One of table ``oid``, which is replicated or not. It acts when a row that it points to goes, or gets another value."""

    name: str
    schema: str
    table: str
    oid: int
    acts_on_delete: bool
    acts_on_update: bool
    is_replicated: bool
    columns: Sequence[str]
    referenced: Sequence[str]

    def refers(self) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("child.{} = target.{}").format(sql.Identifier(own), sql.Identifier(other))
            for own, other in zip(self.columns, self.referenced, strict=True)
        )

    def refusal(self, target: TargetTable, stage: sql.Composable) -> sql.Composed:
        """Raises a foreign key violation if a row of the target's table that is in ``stage`` is referred to by another one."""
        unless: sql.Composable = sql.SQL("")
        if self.oid == target.oid:  # rows that go together may refer to each other
            unless = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} AS staged WHERE {})").format(
                stage, same_key(target, "k", sql.SQL("child"))
            )
        body = sql.SQL(_REFUSE).format(
            children=sql.Identifier(self.schema, self.table),
            parents=target.rows,
            refers=self.refers(),
            stage=stage,
            same_row=same_key(target, "k", sql.SQL("target")),
            unless=unless,
            message=sql.Literal(f"foreign key {self.name} would take or change rows that the source still has"),
            schema=sql.Literal(self.schema),
            table=sql.Literal(self.table),
            constraint=sql.Literal(self.name),
        )
        return sql.SQL("DO {}").format(sql.Literal(body.as_string()))

    def note(self, target: TargetTable, kind: PieceKind, stage: sql.Composable, child: TargetTable | None) -> sql.Composed | None:
        """Notes the rows that the action changes when ``stage`` is merged; None when it changes none. ``child`` is the table that
        refers, if the batch changes it."""
        changed = [i for i, column in enumerate(target.columns) if column.name in self.referenced and i in target.written]
        if not changed:
            return None
        differs = sql.SQL(" OR ").join(
            sql.SQL("target.{} IS DISTINCT FROM {}").format(sql.Identifier(target.columns[i].name), sent_value(target, kind, i))
            for i in changed
        )
        names = [child.columns[i].name for i in child.table.key] if child is not None else []
        return sql.SQL(_NOTE).format(
            constraint=sql.Literal(self.name),
            oid=sql.Literal(self.oid),
            key=sql.SQL(", ").join(sql.SQL("child.{}::text").format(sql.Identifier(name)) for name in names),
            children=sql.Identifier(self.schema, self.table),
            parents=target.rows,
            refers=self.refers(),
            stage=stage,
            same_row=same_key(target, "k" if kind in MOVES else "c", sql.SQL("target")),
            differs=differs,
        )


_NOTED = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS noted_rows (name text, oid oid, key text[]) ON COMMIT DELETE ROWS")
_NOTE = """
INSERT INTO pg_temp.noted_rows SELECT {constraint}, {oid}, ARRAY[{key}]::text[]
  FROM {children} AS child JOIN {parents} AS target ON {refers} JOIN {stage} AS staged ON {same_row} WHERE {differs}
"""
_STRIKE = "DELETE FROM pg_temp.noted_rows USING {stage} AS staged WHERE noted_rows.oid = {oid} AND noted_rows.key IN ({keys})"


class ReferencingKeys:
    """Of one session; each table is looked at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: dict[int, list[_ReferencingKey]] = {}
        self._has_noted = False
        """Whether rows may be noted in this transaction."""

    def forget(self) -> None:
        self._found.clear()

    def begin(self) -> None:
        """A transaction begins."""
        self._has_noted = False

    def point_to(self, target: TargetTable) -> bool:
        return bool(self._of(target))

    def refuse_deletions(self, target: TargetTable, stage: sql.Composable) -> None:
        """Before rows are deleted whose keys ``stage`` holds. Raises psycopg's ForeignKeyViolation."""
        for key in self._of(target):
            if key.is_replicated and key.acts_on_delete:
                self._connection.execute(key.refusal(target, stage))

    def note(self, target: TargetTable, kind: PieceKind, stage: sql.Composable, changed: Iterable[TargetTable]) -> None:
        """Before ``stage`` is merged. ``changed`` are the tables of the batch."""
        if kind not in _UPDATES:
            return
        for key in self._of(target):
            if key.is_replicated and key.acts_on_update:
                child = next((table for table in changed if table.oid == key.oid and table.table.key), None)
                statement = key.note(target, kind, stage, child)
                if statement is not None:
                    self._connection.execute(_NOTED)
                    self._has_noted = self._connection.execute(statement).rowcount > 0 or self._has_noted

    def strike(self, target: TargetTable, kind: PieceKind, stage: sql.Composable) -> None:
        """After ``stage`` was merged: its rows are as the source has them."""
        if not self._has_noted or not target.table.key:
            return
        keys = sql.SQL(", ").join(key_texts(target, prefix) for prefix in _KEYS_OF.get(kind, "c"))
        self._connection.execute(sql.SQL(_STRIKE).format(stage=stage, oid=sql.Literal(target.oid), keys=keys))

    def check(self) -> None:
        """At the end of a batch. Raises TerminalError when an action changed a row that the source did not change."""
        if not self._has_noted:
            return
        found = self._connection.execute("SELECT name, oid::regclass::text FROM pg_temp.noted_rows LIMIT 1").fetchone()
        if found is not None:
            grant = grant_of_replica_role(self._connection)
            raise TerminalError(
                f"constraint '{found[0]}' of table '{found[1]}' at the target, a foreign key, would change rows that the source"
                " keeps as they are, because a row that they refer to changed",
                f"run there: {grant or 'nothing, but connect as a superuser'}; or make the foreign key ON UPDATE NO ACTION; then"
                " start again, nothing is lost",
                statements=[grant] if grant else [],
            )

    def _of(self, target: TargetTable) -> list[_ReferencingKey]:
        if target.oid not in self._found:
            rows = self._connection.execute(_POINTING_TO, [target.oid]).fetchall()
            self._found[target.oid] = [_ReferencingKey(*row) for row in rows]
        return self._found[target.oid]
