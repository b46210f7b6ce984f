"""Tables that inherit from others without being partitions.

A query of the parent shows their rows, but the parent does not hold them. A group copies and follows each of these tables
separately. The chunks of a hypertable are such tables too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from pgsluice.replicator.source.source import Source

_HEIRS: LiteralString = """
    WITH RECURSIVE below (root, oid) AS (
        SELECT c.oid, i.inhrelid FROM pg_class c JOIN pg_inherits i ON i.inhparent = c.oid
         WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relkind = 'r'
         UNION
        SELECT b.root, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
    SELECT format('%%I.%%I', n.nspname, r.relname),
           array_agg(format('%%I.%%I', hn.nspname, h.relname) ORDER BY hn.nspname, h.relname)
      FROM below b JOIN pg_class r ON r.oid = b.root JOIN pg_namespace n ON n.oid = r.relnamespace
      JOIN pg_class h ON h.oid = b.oid JOIN pg_namespace hn ON hn.oid = h.relnamespace
     WHERE NOT h.oid = ANY(%(known)s::oid[])
     GROUP BY 1 ORDER BY 1
"""


async def heirs_left_out(source: Source, oids: Sequence[int], known: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Returns the names of the tables of ``oids`` from which tables inherit that are not among ``known``, each with the names of
    these heirs."""
    rows = await source.rows("looking up inheritance", _HEIRS, {"oids": list(oids), "known": list(known)})
    return [(name, heirs) for name, heirs in rows]
