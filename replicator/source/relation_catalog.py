"""The facts about a table that a Relation message lacks: the catalog's, as far as they were true when the row was written.

The catalog is read later than the row was written, and a column that has a name now may be another than the one that
had it then. So a fact is valid only when the row of the catalog that holds it is older than the change: it was written
by the statement that made the table, or by a transaction that had ended when the slot's place was taken
(``pg_replication_slots.catalog_xmin``), or it was seen before the change's transaction committed. DDL and changes of
one table exclude each other, so one that committed before the change's transaction did was visible to the change. For a
column without that certainty only the message is used.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

from pgsluice.replicator.source.catalog import COLUMNS, DOING, has_whole_key, published_oids, type_names
from pgsluice.replicator.source.source import Source
from pgsluice.shared.pgoutput.messages import Relation
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, parse_lsn
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

HOLDS_FOR_S = 3600.0
"""Limit on a snapshot's age: no server begins 2**31 transactions in it; after that many a new one's number equals an
old one's (``_Snapshot.shows``)."""

_FIRST_NORMAL_XID = 3

# A table's system columns are written when it is made and never again.
_SEEN: LiteralString = """
    SELECT c.*, a.xmin::text::bigint, a.xmin = made.xmin, a.xmin = made.xmin AND a.cmin = made.cmin,
           coalesce(key.xmin::text::bigint, 0), coalesce(key.xmin = made.xmin, false)
      FROM ({columns}) c
      JOIN pg_attribute a ON a.attrelid = c.attrelid::oid AND a.attnum = c.attnum
      JOIN pg_attribute made ON made.attrelid = a.attrelid AND made.attname = 'tableoid'
      LEFT JOIN pg_index key ON key.indrelid = a.attrelid AND key.indisprimary
     ORDER BY a.attrelid, a.attnum
"""

_SNAPSHOT: LiteralString = "SELECT pg_current_snapshot()::text"
_INSERT_LSN: LiteralString = "SELECT pg_current_wal_insert_lsn()::text"


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The visible transactions: all before ``end`` that were not ``running`` (manual: "pg_snapshot Components")."""

    end: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> _Snapshot:
        _, end, running = text.split(":")
        return cls(int(end), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """``xid`` is the lower half of a transaction's number, which began less than 2**31 transactions before or after."""
        before_end = (self.end - xid) & 0xFFFFFFFF
        return 0 < before_end < 1 << 31 and self.end - before_end not in self.running


@dataclass(frozen=True, slots=True)
class _Written:
    """The writer of a row of the catalog: the transaction; whether it is the one that created the table, or even the
    same command."""

    xid: int
    made_table: bool
    is_original: bool = False

    def is_before(self, xid: int) -> bool:
        """Numbers of transactions go round."""
        return self.xid < _FIRST_NORMAL_XID or 0 < (xid - self.xid) & 0xFFFFFFFF < 1 << 31

    def was_there(self, xid: int, horizon: int | None) -> bool:
        """Returns whether the row was visible to a change of the transaction ``xid``, all transactions before
        ``horizon`` having ended earlier."""
        ended = horizon is not None and self.is_before(horizon)
        return ended or self.is_original or (self.made_table and self.is_before(xid))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A column as the catalog has it, and who wrote that; ``key`` wrote which columns are the primary key, if there is one."""

    column: Column
    written: _Written
    key: _Written


@dataclass(frozen=True, slots=True)
class _Uncertain:
    """A table that was described in part: the rest is valid for transactions that commit at ``counts_from`` or later,
    unless another Relation message comes before."""

    relation: Relation
    seen: Sequence[_Seen]
    counts_from: LSN


class RelationCatalog:
    """The catalog's facts about the tables of Relation messages. All published tables are read together when the
    session begins, and when the first message comes. These facts are used, for ``holds_for_s``, for every transaction
    that was visible at that time; for others a table is read again. (A transaction that has been sent need not be
    visible: it may be waiting for a standby.) Transactions before ``horizon`` ended before any that the session
    receives committed."""

    def __init__(self, source: Source, names: GroupNames, horizon: int | None = None, holds_for_s: float = HOLDS_FOR_S) -> None:
        self._source = source
        self._names = names
        self._horizon = horizon
        self._holds_for_s = holds_for_s
        self._looked_at = 0.0
        self._as_of: _Snapshot | None = None
        self._columns: Mapping[int, list[_Seen]] = {}
        self._first_seen: dict[tuple[int, int], tuple[object, LSN]] = {}
        """Facts about each column, by table and number, and about the primary key (number 0); and since which LSN."""
        self._uncertain: dict[int, _Uncertain] = {}
        self.counts_from: LSN | None = None
        """The LSN from which the next of the partly described tables can be described in full."""

    async def begin(self) -> None:
        """Reads all tables, so that the current facts are valid for changes from now on."""
        await self._look(await published_oids(self._source, self._names))

    async def describe(self, relation: Relation, xid: int, commit_lsn: LSN) -> Table:
        """``relation`` was sent within the transaction ``xid``, as Begin has it, which commits at ``commit_lsn``."""
        if self._as_of is None:
            self._looked_at = time.monotonic()
            self._as_of, self._columns = await self._look_up_all()
        holds = time.monotonic() - self._looked_at < self._holds_for_s and self._as_of.shows(xid)
        seen = self._columns.get(relation.oid) if holds else None
        if seen is None:
            seen = (await self._look([relation.oid]))[relation.oid]
        return await self._described(relation, seen, xid, commit_lsn)

    async def complete(self, xid: int, commit_lsn: LSN) -> Sequence[Table]:
        """Returns the tables that can be described in full from this transaction on, which has sent nothing yet."""
        due = [each for each in self._uncertain.values() if each.counts_from <= commit_lsn]
        return [await self._described(each.relation, each.seen, xid, commit_lsn) for each in due]

    async def _look_up_all(self) -> tuple[_Snapshot, Mapping[int, list[_Seen]]]:
        [(snapshot,)] = await self._source.rows(DOING, _SNAPSHOT)
        return _Snapshot.parse(snapshot), await self._look(await published_oids(self._source, self._names))

    async def _look(self, oids: Sequence[int]) -> Mapping[int, list[_Seen]]:
        """Reads tables. Everything read was committed before the LSN that is read afterwards."""
        columns: defaultdict[int, list[_Seen]] = defaultdict(list)
        for row in await self._source.rows(DOING, _SEEN.format(columns=COLUMNS), [list(oids)]):
            oid, facts, written = row[0], row[1:-5], row[-5:]
            key = _Written(written[3], written[4], is_original=written[4])  # a key is made after its table, seldom after rows
            columns[oid].append(_Seen(Column(*facts), _Written(*written[:3]), key))
        [(text,)] = await self._source.rows(DOING, _INSERT_LSN)
        lsn = parse_lsn(text)
        for oid, seen in columns.items():
            for number, what in [*((each.column.number, each) for each in seen), (0, seen[0].key)]:
                known = self._first_seen.get((oid, number))
                if known is None or known[0] != what:
                    self._first_seen[oid, number] = what, lsn
        return columns

    async def _described(self, relation: Relation, seen: Sequence[_Seen], xid: int, commit_lsn: LSN) -> Table:
        oid, names_now = relation.oid, {each.column.name: each.column for each in seen}
        columns = {each.column.name: self._counts_from(oid, each.column.number, each.written, xid) for each in seen}
        key = self._counts_from(oid, 0, seen[0].key, xid) if seen else LSN(0)
        counts_from = max([key, *(columns[column.name] for column in relation.columns if column.name in columns)])
        self._uncertain.pop(oid, None)
        if counts_from > commit_lsn:
            self._uncertain[oid] = _Uncertain(relation, seen, counts_from)
        self.counts_from = min((table.counts_from for table in self._uncertain.values()), default=None)
        known = {name: column for name, column in names_now.items() if columns[name] <= commit_lsn}
        positions = _key_positions(relation, names_now, known if key <= commit_lsn else {})
        return _table(relation, await type_names(self._source, relation.columns, names_now), known, positions)

    def _counts_from(self, oid: int, number: int, written: _Written, xid: int) -> LSN:
        """Returns the LSN from which on transactions can rely on the catalog's facts."""
        return LSN(0) if written.was_there(xid, self._horizon) else self._first_seen[oid, number][1]


def _key_positions(relation: Relation, now: Mapping[str, Column], known: Mapping[str, Column]) -> Mapping[str, int | None]:
    """Returns positions in the primary key. With the default identity the message flags its columns, and the catalog
    adds only their order; with others it determines them, and has to be certain of all of them."""
    positions = {name: column.primary_key_position for name, column in now.items()}
    sent = {column.name for column in relation.columns}
    keyed = {name for name, position in positions.items() if position is not None}
    if relation.replica_identity is ReplicaIdentity.DEFAULT:
        is_key_then = keyed == {column.name for column in relation.columns if column.identity_key}
    else:
        is_key_then = keyed <= known.keys()
    return positions if is_key_then and has_whole_key(list(now.values()), sent) else {}


def _table(relation: Relation, names: Sequence[str], known: Mapping[str, Column], positions: Mapping[str, int | None]) -> Table:
    columns = []
    for column, type_name in zip(relation.columns, names, strict=True):
        then = known.get(column.name)
        described = Column(
            name=column.name,
            type_oid=column.type_oid,
            type_name=type_name,
            typmod=column.typmod,
            not_null=then is not None and then.not_null,
            primary_key_position=positions.get(column.name),
            identity_key=column.identity_key,
            identity="" if then is None else then.identity,
            generated="" if then is None else then.generated,
            number=0 if then is None else then.number,
            collation="" if then is None else then.collation,
        )
        columns.append(described)
    return Table(relation.oid, relation.schema, relation.name, relation.replica_identity, tuple(columns))
