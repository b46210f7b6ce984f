"""Sets up tracking for a session, and makes the source describe each published table once at the start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.definitions.capture import find_capture, install_capture, read_token
from pgsluice.replicator.definitions.installation import Installation, qualified
from pgsluice.replicator.definitions.selection_sql import used_types
from pgsluice.replicator.source.catalog import published_oids
from pgsluice.replicator.source.source import Source
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import MissingPrivilegeError, TerminalError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import TablePattern

log = telemetry.logger(__name__)

AT_ONCE = 100
"""Tables that are described in one transaction, so that it ends soon: no slot's confirmed position waits long for it."""

_UNDESCRIBED: LiteralString = (
    "SELECT c.oid::bigint FROM pg_class c WHERE c.oid = ANY(%(tables)s) AND (c.oid <> ALL(%(described)s::oid[]) OR c.oid IN ("
    "SELECT used.relation FROM (" + used_types("%(tables)s") + ") used WHERE used.oid <> ALL(%(described)s::oid[]))) ORDER BY 1"
)


async def track_definitions(
    source: Source, names: GroupNames, patterns: Sequence[TablePattern], role: str, described: Collection[int], pauses: Pauses
) -> str:
    """Installs the capture and returns the token that signs its messages; "" when the role lacks the rights, so that
    workers notice an altered table by its rows only. ``patterns`` match the tables that may be wanted. Makes the source
    describe in the stream the published tables that are not among ``described``, or that use a type that is not:
    applying a definition needs the one before. Raises otherwise as ``install_capture`` does."""
    installation = Installation(names, patterns, role)
    try:
        token = await _install(source, installation, pauses)
    except MissingPrivilegeError as error:
        log.warning("schema changes are not captured; altered tables stop the workers", reason=error.fact, remedy=error.remedy)
        return ""
    await _describe(source, names, described)
    return token


async def token_now(settings: PostgresSettings, names: GroupNames) -> str:
    """Returns the secret that signs messages now; "" without one that the role may read. Raises TransientError."""
    source = await Source.connect(settings)
    try:
        return await read_token(source, names)
    except TerminalError:
        return ""
    finally:
        await source.close()


async def _describe(source: Source, names: GroupNames, described: Collection[int]) -> None:
    """Describes many tables in one transaction, because a worker takes the definitions of a transaction in one batch."""
    published = list(await published_oids(source, names))
    parameters = {"tables": published, "described": list(described)}
    tables = [oid for (oid,) in await source.rows("looking up tables to describe", _UNDESCRIBED, parameters)]
    call = sql.SQL("SELECT {}(t::regclass) FROM unnest({}::oid[]) t").format
    for first in range(0, len(tables), AT_ONCE):
        few = sql.Literal(tables[first : first + AT_ONCE])
        await source.execute("describing tables", call(sql.SQL(qualified(names, "note")), few))


async def _install(source: Source, installation: Installation, pauses: Pauses) -> str:
    """Installs all of the capture or nothing; without event triggers only if an administrator has installed a capture
    before: a part that this role made would be in the way of the administrator who installs the whole."""
    try:
        return await install_capture(source, installation, pauses)
    except MissingPrivilegeError as error:
        if await find_capture(source, installation.names) is None:
            raise
        token = await install_capture(source, replace(installation, has_triggers=False), pauses)
        log.warning(
            "pgsluice is notified only of tables that migrations report with 'pgsluice ddl note'",
            reason=error.fact,
            remedy=error.remedy,
            command="pgsluice ddl note",
        )
        return token
