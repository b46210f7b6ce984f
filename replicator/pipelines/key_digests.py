"""The SQL that compares keys on two servers without sending them: by digests of buckets, which both work out alike. Pure.

A key is the text of its columns as COPY has it, each after its length; its SHA-256 determines its bucket, and its part
of the bucket's sum. So neither the collation of texts nor a server's encoding matters, and buckets with the same count
and sum have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.replicator.pipelines.key_operators import KeyComparison, KeyOperators
from pgsluice.shared.wire.table import Column

MOST_BUCKETS = 1 << 18
KEYS_IN_A_BUCKET = 8
"""About: what is read for a key that one side lacks."""

_COMMA = sql.SQL(", ")
_AND = sql.SQL(" AND ")

Keys = Sequence[tuple[str, ...]]


def bucket_count(rows: int) -> int:
    """Returns a power of two."""
    return min(MOST_BUCKETS, 1 << max(0, (rows // KEYS_IN_A_BUCKET)).bit_length())


@dataclass(frozen=True, slots=True)
class KeysOf:
    """``rows`` is the FROM item: a table, or a query. Rows without a whole key are ignored."""

    rows: sql.Composable
    columns: Sequence[str]

    def count(self) -> str:
        return sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self.rows, self._whole).as_string(None)

    def digests(self, buckets: int) -> str:
        """Returns the query for the number of each bucket that is not empty, how many keys it has, and their sum as
        text."""
        return (
            sql.SQL(
                "SELECT (('x' || left(digest, 8))::bit(32)::bigint & {mask})::bigint AS bucket, count(*),"
                " sum(('x' || substr(digest, 9, 15))::bit(60)::bigint)::text"
                " FROM (SELECT {digest} AS digest FROM {rows} WHERE {whole}) AS digests GROUP BY 1"
            )
            .format(mask=sql.Literal(buckets - 1), digest=self._digest, rows=self.rows, whole=self._whole)
            .as_string(None)
        )

    def keys_in(self, buckets: int, chosen: Iterable[int]) -> str:
        """Returns SQL for the keys in these buckets, as texts, sorted as Python sorts them, whatever the server's
        encoding."""
        return (
            sql.SQL(
                "SELECT {texts} FROM {rows} WHERE {whole}"
                " AND (('x' || left({digest}, 8))::bit(32)::bigint & {mask}) = ANY ({chosen}::bigint[]) ORDER BY {order}"
            )
            .format(
                texts=_COMMA.join(map(_text, self.columns)),
                order=_COMMA.join(sql.SQL("convert_to({}, 'UTF8')").format(_text(name)) for name in self.columns),
                rows=self.rows,
                whole=self._whole,
                digest=self._digest,
                mask=sql.Literal(buckets - 1),
                chosen=sql.Literal(list(chosen)),
            )
            .as_string(None)
        )

    def missing(self, keys: Keys, types: Sequence[Column], operators: KeyOperators) -> str:
        """Returns the query for those of ``keys`` that no row has, by the equality operators of their types."""
        names = [sql.Identifier(f"k{number}") for number in range(len(self.columns))]
        lists = _COMMA.join(sql.SQL("{}::text[]").format(sql.Literal([key[i] for key in keys])) for i in range(len(names)))
        same = _AND.join(
            operators.compared(
                column.name,
                sql.SQL("kept.{}").format(sql.Identifier(column.name)),
                KeyComparison.EQUAL,
                sql.SQL("given.{}::{}").format(name, sql.SQL(column.type_name)),
            )
            for column, name in zip(types, names, strict=True)
        )
        kept = sql.SQL("SELECT {} FROM {}").format(_COMMA.join(map(sql.Identifier, self.columns)), self.rows)
        return (
            sql.SQL(
                "SELECT {names} FROM unnest({lists}) AS given ({names})"
                " WHERE NOT EXISTS (SELECT FROM ({kept}) AS kept WHERE {same})"
            )
            .format(names=_COMMA.join(names), lists=lists, kept=kept, same=same)
            .as_string(None)
        )

    @property
    def _whole(self) -> sql.Composable:
        return _AND.join(sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in self.columns)

    @property
    def _digest(self) -> sql.Composable:
        parts = _COMMA.join(
            sql.SQL("octet_length(convert_to({text}, 'UTF8')), ':', {text}").format(text=_text(name)) for name in self.columns
        )
        return sql.SQL("encode(sha256(convert_to(concat({}), 'UTF8')), 'hex')").format(parts)


def _text(column: str) -> sql.Composable:
    """Returns SQL for the text as the type writes it, and so as COPY has it; a cast would remove the blanks of char(n)."""
    return sql.SQL("concat({})").format(sql.Identifier(column))
