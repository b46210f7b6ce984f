"""The partitions below a partitioned table, and what became of them since they were looked at before.

PostgreSQL publishes a partition's rows under its root, but not that a partition was detached, dropped or truncated by itself: its
rows stay at the targets. The rows that a table held when it was attached are not published either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import LiteralString

from pgsluice.replicator.source.source import Source


@dataclass(frozen=True, slots=True)
class Partition:
    """``attached`` is the transaction that made it a partition; ``is_born``: it also made the table, which was empty."""

    oid: int
    name: str
    attached: str
    is_born: bool


@dataclass(frozen=True, slots=True)
class _Row:
    root: int
    oid: int
    name: str
    attached: str
    is_born: bool


# A table's system columns are written when it is made and never again; its row in pg_class changes often.
_TREES: LiteralString = """
    SELECT r.oid::bigint AS root, c.oid::bigint, n.nspname || '.' || c.relname AS name, i.xmin::text AS attached,
           i.xmin = (SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tableoid') AS is_born
      FROM unnest(%s::oid[]) AS r (oid), LATERAL pg_partition_tree(r.oid) t
      JOIN pg_class c ON c.oid = t.relid
      JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_inherits i ON i.inhrelid = c.oid
     WHERE t.relid <> r.oid
     ORDER BY n.nspname, c.relname
"""


async def read_partitions(source: Source, roots: Collection[int]) -> dict[int, tuple[Partition, ...]]:
    """Every partition below each root, those that are partitioned themselves included. A root that is gone is left out."""
    if not roots:
        return {}
    trees: defaultdict[int, list[Partition]] = defaultdict(list)
    for row in await source.rows_of(_Row, "looking up partitions", _TREES, [list(roots)]):
        trees[row.root].append(Partition(row.oid, row.name, row.attached, row.is_born))
    return {root: tuple(trees[root]) for root in roots}


def partition_changes(before: Sequence[Partition], after: Sequence[Partition]) -> list[str]:
    """What the targets were not told of, each as the end of a sentence that begins with the root's name."""
    earlier = {partition.oid: partition for partition in before}
    current = {partition.oid for partition in after}
    changes = [
        f"partition {gone.name} was detached or dropped; its rows stay at the targets"
        for gone in before
        if gone.oid not in current
    ]
    for partition in after:
        known = earlier.get(partition.oid)
        if known is None and not partition.is_born:
            changes.append(f"table {partition.name} was attached; rows that it held before are missing at the targets")
        elif known is not None and known.attached != partition.attached:
            changes.append(f"partition {partition.name} was detached and attached again; its changes in between are missing")
    return changes
