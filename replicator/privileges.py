"""What the role lacks at the source to publish a group's tables: all of it at once, each as the statement that grants it."""

from __future__ import annotations

from collections.abc import Collection
from typing import LiteralString

from replicator.source import Source
from replicator.tables import SourceTable
from shared.errors import TerminalError

SHOWN = 20

# PostgreSQL asks for ownership of a table that is published (manual: CREATE PUBLICATION), which a member of the owning role has.
# Nobody should be made a member of a superuser; its tables change hands instead.
_LACKING: LiteralString = """
    WITH wanted AS (SELECT c.relname, c.relowner, n.nspname, n.oid AS schema_oid,
                           pg_has_role(c.relowner, 'USAGE') AS is_owner, r.rolname, r.rolsuper
                      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
                     WHERE c.oid = ANY(%(oids)s::oid[]))
    SELECT format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), current_user) AS statement, 1 AS step
     WHERE %(creates)s AND NOT has_database_privilege(current_database(), 'CREATE')
    UNION
    SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I', nspname, current_user), 2
      FROM wanted WHERE NOT has_schema_privilege(schema_oid, 'USAGE')
    UNION
    SELECT CASE WHEN rolsuper THEN format('ALTER TABLE %%I.%%I OWNER TO %%I', nspname, relname, current_user)
                ELSE format('GRANT %%I TO %%I', rolname, current_user) END, 3
      FROM wanted WHERE NOT is_owner
     ORDER BY step, statement
"""


async def check_publisher(source: Source, tables: Collection[SourceTable], *, creates: bool) -> None:
    """To be called before a publication takes ``tables`` in; ``creates``: it is made for that. Raises TerminalError."""
    parameters = {"oids": [table.oid for table in tables], "creates": creates}
    rows = await source.rows("checking the role's privileges", _LACKING, parameters)
    if not rows:
        return
    statements = [statement for statement, _ in rows]
    more = f"; and {len(statements) - SHOWN} more like these" if len(statements) > SHOWN else ""
    raise TerminalError(
        f"the role may not publish the group's tables: it lacks {len(statements)} of the privileges that this takes",
        f"let an administrator run: {'; '.join(statements[:SHOWN])}{more}",
    )
