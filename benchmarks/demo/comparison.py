"""Whether source and target hold the same rows, found out by checksums that each database computes itself."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from psycopg import sql

from tests.servers import Database

_CHECKSUM = sql.SQL("SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {} t")
_KEYS = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indisprimary AND i.indrelid = %s::regclass ORDER BY array_position(i.indkey::int2[], a.attnum)
"""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of the text form of every row, whatever their order."""

    rows: int
    digest: Decimal

    @property
    def shown(self) -> str:
        """Its last 64 bits."""
        return f"{int(self.digest) % 2**64:016x}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table on both sides."""

    table: str
    source: Checksum
    target: Checksum

    @property
    def is_equal(self) -> bool:
        return self.source == self.target


def compare(source: Database, target: Database, table: str) -> Comparison:
    return Comparison(table, _checksum(source, table), _checksum(target, table))


def _checksum(database: Database, table: str) -> Checksum:
    with database.connect() as connection:
        row = connection.execute(_CHECKSUM.format(sql.Identifier(table))).fetchone()
    assert row is not None
    return Checksum(row[0], row[1])


def sample(source: Database, target: Database, table: str) -> list[tuple[str, str]]:
    """Three rows picked at random at the source, each with the target's row of the same key ("" when it has none)."""
    with source.connect() as connection:
        keys = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for (name,) in connection.execute(_KEYS, [table]))
        name = sql.Identifier(table)
        picked = connection.execute(
            sql.SQL("SELECT ROW({})::text, t::text FROM {} t ORDER BY random() LIMIT 3").format(keys, name)
        ).fetchall()
    with target.connect() as connection:
        found: dict[str, str] = dict(
            connection.execute(
                sql.SQL("SELECT ROW({0})::text, t::text FROM {1} t WHERE ROW({0})::text = ANY(%s)").format(keys, name),
                [[key for key, _ in picked]],
            ).fetchall()
        )
    return [(row, found.get(key, "")) for key, row in picked]
