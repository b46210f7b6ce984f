"""Foreign keys of the target that point to the tables which a batch changes.

They matter where PostgreSQL checks them: in a session whose role may not set session_replication_role. There their actions would
take or change rows that the source still has.

ON DELETE: the merge refuses to delete a row if an action would follow, as a foreign key without an action would. The source has
taken away what refers to the row before that: deletions wait for the end of the batch (``merge``).
ON UPDATE: the action takes place, because the source's own changes of the rows that it changes follow in the batch. The merge
notes these rows, and forgets each when it has applied the row's own change. A row that is still noted at the end of the batch
stops the worker.

Rows of tables that only the target has may follow their foreign keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from psycopg import sql

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.postgres.fold.piece import MOVES, PieceKind
from pgsluice.worker.sinks.postgres.merge.row_expressions import key_texts, name_of, same_key, sent_value
from pgsluice.worker.sinks.postgres.own.own_tables import own_table
from pgsluice.worker.sinks.postgres.target.connection import Connection, grant_of_replica_role
from pgsluice.worker.sinks.postgres.target.table import TargetTable

_CHILD = sql.SQL("child")
_TARGET = sql.SQL("target")

_POINTING_TO = sql.SQL("""
WITH own (oid) AS (SELECT %(table)s::oid UNION SELECT relid FROM pg_partition_tree(%(table)s::oid))
SELECT r.conname, n.nspname, c.relname, r.conrelid, r.confdeltype IN ('c', 'n', 'd'), r.confupdtype IN ('c', 'n', 'd'),
       EXISTS (SELECT FROM {} AS known
                WHERE known.target_oid IN (SELECT r.conrelid UNION SELECT relid FROM pg_partition_tree(r.conrelid)
                                           UNION SELECT relid FROM pg_partition_ancestors(r.conrelid))),
       ARRAY(SELECT a.attname::text FROM unnest(r.conkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = r.conrelid AND a.attnum = k.number ORDER BY k.place),
       ARRAY(SELECT a.attname::text FROM unnest(r.confkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = r.confrelid AND a.attnum = k.number ORDER BY k.place)
  FROM pg_constraint r JOIN pg_class c ON c.oid = r.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.contype = 'f' AND r.confrelid IN (SELECT oid FROM own)
   AND NOT EXISTS (SELECT FROM pg_constraint AS whole
                    WHERE whole.oid = r.conparentid AND whole.confrelid IN (SELECT oid FROM own))
 ORDER BY r.oid
""").format(own_table("tables"))
"""Selects ``_ReferencingKey``'s fields. A foreign key that points to a partition is treated as one that points to the
whole table. One of, or to, a partitioned table represents its partitions' keys."""

_REFUSE = """
BEGIN
    IF EXISTS (SELECT FROM {children} AS child JOIN {parents} AS target ON {refers} JOIN {stage} AS staged ON {same_row}
               {unless}) THEN
        RAISE EXCEPTION USING ERRCODE = 'foreign_key_violation', MESSAGE = {message}, SCHEMA = {schema}, TABLE = {table},
                              CONSTRAINT = {constraint};
    END IF;
END
"""

_MAKE_NOTES = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS noted_rows (name text, oid oid, key text[]) ON COMMIT DELETE ROWS")
_NOTE = """
INSERT INTO pg_temp.noted_rows SELECT {constraint}, {oid}, ARRAY[{key}]::text[]
  FROM {children} AS child JOIN {parents} AS target ON {refers} JOIN {stage} AS staged ON {same_row} WHERE {differs}
"""
_FORGET = "DELETE FROM pg_temp.noted_rows USING {stage} AS staged WHERE noted_rows.oid = {oid} AND noted_rows.key IN ({keys})"

_UPDATES = (*MOVES, PieceKind.UPSERT, PieceKind.PATCH)


@dataclass(frozen=True, slots=True)
class _ReferencingKey:
    """A foreign key of the target's table ``oid``. It acts when a row that it points to goes, or gets another value.
    ``is_replicated``: workers write to the table."""

    name: str
    schema: str
    table: str
    oid: int
    acts_on_delete: bool
    acts_on_update: bool
    is_replicated: bool
    columns: Sequence[str]
    referenced: Sequence[str]

    def refusal(self, target: TargetTable, stage: sql.Composable) -> sql.Composed:
        """Returns the statement that raises a foreign key violation if a row refers to one of ``target`` whose key is
        in ``stage``. Rows whose keys are in the stage together may refer to each other."""
        unless: sql.Composable = sql.SQL("")
        if self.oid == target.oid:
            goes_too = same_key(target, "k", _CHILD)
            unless = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} AS staged WHERE {})").format(stage, goes_too)
        body = sql.SQL(_REFUSE).format(
            children=self._children,
            parents=target.rows,
            refers=self._refers(),
            stage=stage,
            same_row=same_key(target, "k", _TARGET),
            unless=unless,
            message=sql.Literal(f"foreign key {self.name} would take or change rows that the source still has"),
            schema=sql.Literal(self.schema),
            table=sql.Literal(self.table),
            constraint=sql.Literal(self.name),
        )
        return sql.SQL("DO {}").format(sql.Literal(body.as_string()))

    def note(self, target: TargetTable, kind: PieceKind, stage: sql.Composable, child: TargetTable | None) -> sql.Composed | None:
        """Returns the statement that notes the rows which the action changes when ``stage`` is merged; None when it changes none.
        ``child`` is the table that refers, if this session knows it: of another one no change can come in the batch."""
        changed = [i for i in target.written if target.columns[i].name in self.referenced]
        if not changed:
            return None
        differs = sql.SQL(" OR ").join(
            sql.SQL("target.{} IS DISTINCT FROM {}").format(name_of(target, i), sent_value(target, kind, i)) for i in changed
        )
        names = [name_of(child, i) for i in child.table.key] if child is not None else []
        return sql.SQL(_NOTE).format(
            constraint=sql.Literal(self.name),
            oid=sql.Literal(self.oid),
            key=sql.SQL(", ").join(sql.SQL("child.{}::text").format(name) for name in names),
            children=self._children,
            parents=target.rows,
            refers=self._refers(),
            stage=stage,
            same_row=same_key(target, "k" if kind in MOVES else "c", _TARGET),
            differs=differs,
        )

    @property
    def _children(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    def _refers(self) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("child.{} = target.{}").format(sql.Identifier(own), sql.Identifier(other))
            for own, other in zip(self.columns, self.referenced, strict=True)
        )


class ReferencingKeys:
    """The foreign keys at work in one session's transactions. Who owns the tables may make others at any time, so they are read
    again in each, under a lock that keeps new ones from being made before its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: dict[int, list[_ReferencingKey]] = {}
        self._may_have_notes = False
        """True if rows may be noted in this transaction."""

    def begin(self) -> None:
        """Begins a transaction, in which no row is noted yet."""
        self._found.clear()
        self._may_have_notes = False

    def point_to(self, target: TargetTable) -> bool:
        """Returns whether there are any that point to ``target``."""
        return bool(self._of(target))

    def refuse_deletions(self, target: TargetTable, stage: sql.Composable) -> None:
        """Call it before rows are deleted whose keys ``stage`` holds. Raises psycopg's ForeignKeyViolation."""
        for key in self._of(target):
            if key.is_replicated and key.acts_on_delete:
                self._connection.execute(key.refusal(target, stage))

    def note_changed(self, target: TargetTable, kind: PieceKind, stage: sql.Composable, known: Iterable[TargetTable]) -> None:
        """Notes the rows that actions will change; call it before ``stage`` is merged. ``known`` are the session's tables."""
        if kind not in _UPDATES:
            return
        for key in self._of(target):
            if key.is_replicated and key.acts_on_update:
                child = next((table for table in known if table.oid == key.oid and table.table.key), None)
                statement = key.note(target, kind, stage, child)
                if statement is not None:
                    self._connection.execute(_MAKE_NOTES)
                    self._may_have_notes = self._connection.execute(statement).rowcount > 0 or self._may_have_notes

    def forget_applied(self, target: TargetTable, kind: PieceKind, stage: sql.Composable) -> None:
        """Forgets the noted rows that ``stage`` holds; call it when ``stage`` was merged, and they are as the source has them."""
        if not self._may_have_notes or not target.table.key:
            return
        keys = sql.SQL(", ").join(key_texts(target, prefix) for prefix in _key_prefixes(kind))
        self._connection.execute(sql.SQL(_FORGET).format(stage=stage, oid=sql.Literal(target.oid), keys=keys))

    def check_noted(self) -> None:
        """Call it at the end of a batch. Raises TerminalError when an action changed a row that the source did not change."""
        if not self._may_have_notes:
            return
        found = self._connection.execute("SELECT name, oid::regclass::text FROM pg_temp.noted_rows LIMIT 1").fetchone()
        if found is not None:
            grant = grant_of_replica_role(self._connection)
            raise TerminalError(
                f"constraint '{found[0]}' of table '{found[1]}' at the target, a foreign key, would change rows that the source"
                " keeps as they are, because a row that they refer to changed",
                f"{f'run there: {grant}' if grant else 'connect as a superuser'}, and leave out target-disable-foreign-keys;"
                " or make the foreign key ON UPDATE NO ACTION; then start again, nothing is lost",
                statements=[grant] if grant else [],
            )

    def _of(self, target: TargetTable) -> list[_ReferencingKey]:
        if target.oid not in self._found:
            self._connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(target.identifier))
            rows = self._connection.execute(_POINTING_TO, {"table": target.oid}).fetchall()
            self._found[target.oid] = [_ReferencingKey(*row) for row in rows]
        return self._found[target.oid]


def _key_prefixes(kind: PieceKind) -> tuple[str, ...]:
    """Returns the columns of a stage in which keys are: those of the rows now, of the rows before, or both."""
    match kind:
        case PieceKind.INSERT | PieceKind.UPSERT | PieceKind.PATCH | PieceKind.IN_ORDER:
            return ("c",)
        case PieceKind.DELETE:
            return ("k",)
        case PieceKind.MOVE | PieceKind.MOVE_IN_ORDER:
            return ("k", "c")
        case unreachable:
            assert_never(unreachable)
