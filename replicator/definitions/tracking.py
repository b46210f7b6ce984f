"""Whether definitions are captured for a session, and that each published table is described once to begin with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.definitions.capture import install_capture
from pgsluice.replicator.definitions.installation import Installation, qualified
from pgsluice.replicator.source.catalog import published_oids
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.errors import MissingPrivilegeError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

log = telemetry.logger(__name__)

_NAMES: LiteralString = "SELECT c.oid::regclass::text FROM pg_class c WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid"


async def track_definitions(
    source: Source, names: GroupNames, patterns: Sequence[TablePattern], role: str, described: Collection[int], pauses: Pauses
) -> str:
    """The token that signs what is told; "" when nothing is. ``patterns`` say which tables may be wanted. Published tables that
    are not among ``described`` are, in the stream: whoever applies the next definition has to know the one before. Raises as
    ``install_capture`` does, but for a lack of rights: then a table that is altered is found out by its rows."""
    installation = Installation(names, patterns, role)
    try:
        token = await _install(source, installation, pauses)
    except MissingPrivilegeError as error:
        log.warning("definitions are not captured; altered tables stop the workers", reason=error.fact, remedy=error.remedy)
        return ""
    undescribed = set(await published_oids(source, names)) - set(described)
    for (table,) in await source.rows("looking up tables to describe", _NAMES, [list(undescribed)]):
        call = sql.SQL("SELECT {}({}::regclass)").format(sql.SQL(qualified(names, "note")), sql.Literal(table))
        await source.execute(f"describing {table}", call)
    return token


async def _install(source: Source, installation: Installation, pauses: Pauses) -> str:
    """Without event triggers where only an administrator could make them: migrations can still tell of tables by hand."""
    try:
        return await install_capture(source, installation, pauses)
    except MissingPrivilegeError as error:
        token = await install_capture(source, replace(installation, has_triggers=False), pauses)
        log.warning(
            "only tables that migrations note are told of", reason=error.fact, remedy=error.remedy, command="pgsluice ddl note"
        )
        return token
