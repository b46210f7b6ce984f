"""Alters the group's own publication: tables enter and leave it, under locks, each checked to be the right one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import LiteralString

from psycopg import sql

from pgsluice.replicator.source.publication import PIECE, Publication, PublishedTable, pieces, table_list
from pgsluice.replicator.source.source import Source, retry_locked
from pgsluice.replicator.source.tables import SourceTable, check_publisher
from pgsluice.shared.errors import TableChangedError, TerminalError
from pgsluice.shared.preflight.finding import listed
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames

LOCK_TIMEOUT_MS = 500  # for as long, writers of a table wait for us
TURN_TIMEOUT_MS = 2500  # limit for blocked writers; an autovacuum gives way after a second (``deadlock_timeout``)

_CHANGED: LiteralString = """
    SELECT w.schema || '.' || w.name
      FROM unnest(%s::oid[], %s::text[], %s::text[]) AS w (oid, schema, name)
      LEFT JOIN pg_class c ON c.oid = w.oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE (n.nspname, c.relname) IS DISTINCT FROM (w.schema, w.name)
"""


@dataclass(frozen=True, slots=True)
class PublicationAlteration:
    """The changes from the group's publication to the wanted one. ``locked`` are tables for which decoding may know the
    current one: joining tables, and all of them when its options change. ``schemas`` were added by another role.
    ``is_decoded``: there is a slot. Without ``waits`` it is made only if all of them are free."""

    joining: Sequence[SourceTable]
    leaving: Sequence[PublishedTable]
    operations: tuple[str, ...] | None
    locked: Sequence[SourceTable]
    schemas: tuple[str, ...] = ()
    is_decoded: bool = True
    waits: bool = True

    @classmethod
    def between(
        cls,
        publication: Publication,
        tables: Sequence[SourceTable],
        operations: Collection[str],
        *,
        is_decoded: bool,
        only_joins: bool = False,
        waits: bool = True,
    ) -> PublicationAlteration:
        """Compares. ``only_joins``: tables other than ``tables`` stay for now."""
        wanted, named = {table.oid for table in tables}, {table.oid for table in publication.tables if table.is_named}
        joining = [table for table in tables if table.oid not in named]
        is_same = set(publication.operations) == set(operations) and publication.via_partition_root
        leaving = [table for table in publication.tables if table.is_named and table.oid not in wanted]
        return cls(
            joining,
            [] if only_joins else leaving,
            None if is_same else tuple(operations),
            [] if not is_decoded else joining if is_same else list(tables),
            () if only_joins else publication.schemas,
            is_decoded,
            waits,
        )

    @property
    def concerned(self) -> list[SourceTable | PublishedTable]:
        return [*(self.locked or self.joining), *self.leaving]

    def __bool__(self) -> bool:
        return bool(self.joining or self.leaving or self.schemas or self.operations is not None)

    def in_pieces(self) -> list[PublicationAlteration]:
        """Returns alterations that do the same one after the other, each with few locks. One of the options locks all
        tables."""
        if self.operations is not None or len(self.joining) + len(self.leaving) <= PIECE:
            return [self]
        nothing = replace(self, joining=(), leaving=(), locked=(), schemas=())
        joins = [replace(nothing, joining=piece, locked=piece if self.locked else ()) for piece in pieces(self.joining)]
        ends = [replace(nothing, leaving=piece) for piece in pieces(self.leaving)]
        return [*joins, *ends, *([replace(nothing, schemas=self.schemas)] if self.schemas else [])]

    def statements(self, name: sql.Identifier) -> list[sql.Composed]:
        """Tables that stay are not named: their row filters and column lists are left as they are."""
        made = []
        if self.operations is not None:
            options = sql.SQL("ALTER PUBLICATION {} SET (publish = {}, publish_via_partition_root = true)")
            made.append(options.format(name, sql.Literal(", ".join(self.operations))))
        if self.joining:
            made.append(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, table_list(self.joining)))
        if self.leaving:
            made.append(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(name, table_list(self.leaving)))
        if self.schemas:
            schemas = sql.SQL(", ").join(map(sql.Identifier, self.schemas))
            made.append(sql.SQL("ALTER PUBLICATION {} DROP TABLES IN SCHEMA {}").format(name, schemas))
        return made


async def alter_publication(
    source: Source, names: GroupNames, alteration: PublicationAlteration, note: Callable[[str], Awaitable[None]], pauses: Pauses
) -> None:
    """Alters it when no transaction that has written to the locked tables is open: decoding, on servers older than
    spring 2025, continues with such a transaction's view of the publication, and leaves out its later changes.

    ``note`` gets the transaction's id before anything is altered, each time that it is tried. A table is locked for
    moments: first so that it may be written to, for which autovacuum gives way; then an application waits, for
    LOCK_TIMEOUT_MS at most. Raises LockTimeoutError when a table was never free, TableChangedError when one is not what
    it was.
    """
    await check_publisher(source, alteration.joining, creates=False)
    for piece in alteration.in_pieces():
        alter = partial(_alter, source, names, piece, note)
        if piece.waits:
            await retry_locked(alter, pauses, "a table that joins or leaves is in use, trying again")
        else:
            await alter()


async def _alter(
    source: Source, names: GroupNames, alteration: PublicationAlteration, note: Callable[[str], Awaitable[None]]
) -> None:
    doing = f"changing publication {names.publication}"
    statements = alteration.statements(sql.Identifier(names.publication))
    async with source.transaction(doing):
        [(xid,)] = await source.rows(doing, "SELECT pg_current_xact_id()::xid::text")
        await note(xid)
        if alteration.waits:
            await _lock(source, doing, alteration.concerned, "SHARE UPDATE EXCLUSIVE MODE", TURN_TIMEOUT_MS)
            await _lock(source, doing, alteration.locked, "SHARE ROW EXCLUSIVE MODE", LOCK_TIMEOUT_MS)
        else:  # waiting for one table with locks on others may block a transaction that locks them in another sequence
            await _lock(source, doing, alteration.concerned, "SHARE ROW EXCLUSIVE MODE NOWAIT", LOCK_TIMEOUT_MS)
        await _check_unchanged(source, doing, alteration.concerned)
        for statement in statements:
            try:
                await source.execute(doing, statement)
            except TerminalError as error:
                raise TerminalError(error.fact, f"{error.remedy}: {statement.as_string()}") from None


async def _check_unchanged(source: Source, doing: str, tables: Sequence[SourceTable | PublishedTable]) -> None:
    """Checks the identity of tables that were locked, and are altered, by name. Raises TableChangedError when one is
    another now."""
    parameters = [[table.oid for table in tables], [table.schema for table in tables], [table.name for table in tables]]
    if changed := [name for (name,) in await source.rows(doing, _CHANGED, parameters)]:
        raise TableChangedError(f"{', '.join(changed)} is another table now, or does not exist", "it is looked up again")


async def _lock(
    source: Source, doing: str, tables: Sequence[SourceTable | PublishedTable], mode: LiteralString, timeout_ms: int
) -> None:
    """Locks the tables until the transaction ends. Raises LockTimeoutError."""
    if tables:
        await source.execute(doing, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(timeout_ms)))
        statement = sql.SQL("LOCK TABLE {} IN {}").format(_lock_list(tables), sql.SQL(mode))
        names = listed([table.qualified_name for table in tables])
        await source.execute(f"locking {names} for {doing}", statement)


def _lock_list(tables: Sequence[SourceTable | PublishedTable]) -> sql.Composed:
    """Partitions are locked with their root, as they can be written to by their own names; not those of a table that leaves."""
    is_whole = [isinstance(table, SourceTable) and table.kind == "p" for table in tables]
    return sql.SQL(", ").join(
        sql.SQL("{}" if whole else "ONLY {}").format(sql.Identifier(table.schema, table.name))
        for table, whole in zip(tables, is_whole, strict=True)
    )
