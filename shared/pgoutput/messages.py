"""One type per message of the logical replication protocol, version 1.

Manual: "Logical Replication Message Formats" (protocol-logicalrep-message-formats.html); their sequence is in "Logical
Replication Protocol Message Flow". Field order and meaning are the manual's, names are this project's.

A message is a NamedTuple, so compare messages of unknown kinds with their types: tuples of different types can be
equal.
"""

from __future__ import annotations

from typing import NamedTuple

from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import ReplicaIdentity, Value


class Begin(NamedTuple):
    """Begins a transaction. ``final_lsn`` is its commit LSN; ``committed_at`` is microseconds since 2000-01-01 UTC."""

    final_lsn: LSN
    committed_at: int
    xid: int


class Commit(NamedTuple):
    """Ends a transaction. ``end_lsn`` is the first LSN after it; ``flags`` is unused by the server."""

    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    committed_at: int


class Origin(NamedTuple):
    """Names the replication origin that the transaction came from; ``commit_lsn`` counts in the origin's WAL, not in
    the server's."""

    commit_lsn: LSN
    name: str


class LogicalMessage(NamedTuple):
    """The content of ``pg_logical_emit_message``. One that is not transactional is outside any transaction."""

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes


class RelationColumn(NamedTuple):
    """``identity_key``: the column is part of the replica identity."""

    identity_key: bool
    name: str
    type_oid: int
    typmod: int


class Relation(NamedTuple):
    """Describes a table before its first change and after each change of its definition. ``schema`` is never empty."""

    oid: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


class Type(NamedTuple):
    """Names a data type that is not built in, before the Relation that uses it. ``schema`` is never empty."""

    oid: int
    schema: str
    name: str


Row = tuple[Value, ...]

NO_OLD_ROW = 0
OLD_KEY = ord("K")
OLD_ROW = ord("O")
"""Kind of an old image: none, the columns of the replica identity (the others are null), or the whole row."""


class Insert(NamedTuple):
    relation_oid: int
    new: Row


class Update(NamedTuple):
    """``old_kind`` is NO_OLD_ROW (then ``old`` is empty), OLD_KEY or OLD_ROW."""

    relation_oid: int
    old_kind: int
    old: Row
    new: Row


class Delete(NamedTuple):
    """``old_kind`` is OLD_KEY or OLD_ROW."""

    relation_oid: int
    old_kind: int
    old: Row


class Truncate(NamedTuple):
    cascade: bool
    restart_identity: bool
    relation_oids: tuple[int, ...]


PgoutputMessage = Begin | Commit | Origin | LogicalMessage | Relation | Type | Insert | Update | Delete | Truncate
"""Every message of protocol version 1 that a server sends without streaming, two-phase commit or parallel options."""
