"""Decides which tables may be followed from now on, and which decisions an operator has to make before: pure.

A group that only streams can bring over neither the rows that a table held before it joined, nor the changes that were
made while it was away. So it refuses such a table, unless the operator names it in ``without-copy``. A group with a
copy copies it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pgsluice.replicator.membership.membership import Break, Membership
from pgsluice.replicator.source.publication import Publication
from pgsluice.replicator.source.tables import SourceTable, parse_pattern, wanted_patterns
from pgsluice.shared.broker.ledger import LedgerContent, Phase
from pgsluice.shared.broker.table_selection import NO_SELECTION, TableSelection
from pgsluice.shared.config.settings import ReplicatorSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.table import TablePattern

_START_AGAIN = "run 'pgsluice drop' and start again with --mode copy-and-stream and an empty target"


@dataclass(frozen=True, slots=True)
class Wishes:
    """The tables that the configuration and commands ask for. ``copies``: rows are copied; ``configured`` is from
    ``tables``, () for all that an administrator's publication contains; ``added`` and ``removed`` are from commands
    (``shared.broker.table_selection``). ``without_copy`` accepts missing rows and changes, ``added_without_copy`` only
    when a table joins."""

    copies: bool
    configured: tuple[TablePattern, ...]
    without_copy: tuple[TablePattern, ...]
    added: tuple[TablePattern, ...] = ()
    removed: tuple[TablePattern, ...] = ()
    added_without_copy: tuple[TablePattern, ...] = ()

    @classmethod
    def of(cls, settings: ReplicatorSettings, selection: TableSelection = NO_SELECTION) -> Wishes:
        return cls(
            copies=settings.copy is not None,
            configured=tuple(wanted_patterns(settings.tables, settings.schema, settings.publication)),
            without_copy=tuple(parse_pattern(text, settings.schema) for text in settings.without_copy),
            added=tuple(map(TablePattern.parse, selection.added)),
            removed=tuple(map(TablePattern.parse, selection.removed)),
            added_without_copy=tuple(map(TablePattern.parse, selection.without_copy)),
        )

    @property
    def patterns(self) -> tuple[TablePattern, ...]:
        """All patterns that ask for tables."""
        return (*self.configured, *self.added)

    @property
    def matching(self) -> tuple[TablePattern, ...]:
        """Patterns that can match several tables, like whole schemas."""
        return tuple(pattern for pattern in self.patterns if not pattern.is_name)

    def names(self, table: SourceTable) -> bool:
        return any(pattern.is_name and pattern.matches(table.schema, table.name) for pattern in self.patterns)

    def is_removed(self, schema: str, table: str) -> bool:
        is_named = any(pattern.is_name and pattern.matches(schema, table) for pattern in self.added)
        return not is_named and any(pattern.matches(schema, table) for pattern in self.removed)

    def wants(self, schema: str, table: str) -> bool:
        """Returns whether a table of that name is asked for."""
        is_asked_for = not self.configured or any(pattern.matches(schema, table) for pattern in self.patterns)
        return is_asked_for and not self.is_removed(schema, table)

    def goes_on_without_copy(self, schema: str, table: str) -> bool:
        return any(pattern.matches(schema, table) for pattern in self.without_copy)

    def joins_without_copy(self, schema: str, table: str) -> bool:
        return any(pattern.matches(schema, table) for pattern in (*self.without_copy, *self.added_without_copy))


@dataclass(frozen=True, slots=True)
class Joining:
    """``tables`` are those to be followed; of them ``accepted`` join although rows or changes of them are missing. ``refused``
    are tables that may not join, and that were not requested by name."""

    tables: list[SourceTable]
    accepted: list[SourceTable]
    refused: list[tuple[SourceTable, TerminalError]]


def settle_breaks(
    membership: Membership, tables: Collection[SourceTable], ledger: LedgerContent, wishes: Wishes
) -> tuple[Membership, list[Break]]:
    """Returns ``membership`` without settled breaks: of tables that are copied again, of tables that are no longer
    wanted, and of tables that the operator continues without a copy. Returns the latter separately."""
    selected = {table.oid for table in tables}
    accepted: dict[int, Break] = {}

    def is_open(entry: Break) -> bool:
        if entry.oid not in selected or is_copied_anew(ledger, entry.oid):
            return False
        if wishes.goes_on_without_copy(entry.schema, entry.table):
            accepted[entry.oid] = entry
            return False
        return True

    missing = tuple(filter(is_open, membership.missing))
    partition_changes = tuple(filter(is_open, membership.partition_changes))
    return replace(membership, missing=missing, partition_changes=partition_changes), list(accepted.values())


def is_copied_anew(ledger: LedgerContent, oid: int) -> bool:
    """Returns whether no change of the table is applied before a later copy defines from where on."""
    record = ledger.tables.get(oid)
    return record is not None and (record.phase.is_waiting_for_copy or record.phase is Phase.ERRORED)


def check_breaks(membership: Membership, copies: bool) -> None:
    """Raises TerminalError while changes are missing without an operator's decision."""
    if not membership.missing:
        return
    first = membership.missing[0]
    names = listed([entry.qualified_name for entry in membership.missing])
    fact = f"changes of {names} since {first.lsn} ({first.at[:19]}) may be missing at the targets: {first.reason}"
    go_on = f"start once with --without-copy {names} if nothing is missing or it does not matter"
    if copies:
        raise TerminalError(fact, f"start once with --recopy {names}, which resyncs them into emptied tables; or {go_on}")
    raise TerminalError(fact, f"{_START_AGAIN}; or {go_on}")


def choose_joining(
    membership: Membership, tables: Sequence[SourceTable], wishes: Wishes, newborn: Collection[int] = ()
) -> Joining:
    """Chooses the ``tables`` that a group which has published already follows from now on. Leaves out new tables that were not
    requested by name, unless they are ``newborn``: published since they were made. Raises UsageError or TerminalError for a table
    that was requested by name, and whose rows or changes would be missing.
    """
    joining = Joining([], [], [])
    for table in tables:
        if table.oid in membership.oids or wishes.copies:
            joining.tables.append(table)
        elif wishes.joins_without_copy(table.schema, table.name):
            joining.tables.append(table)
            joining.accepted.append(table)
        elif table.qualified_name in membership.known_names or any(entry.oid == table.oid for entry in membership.left):
            error = _returned(membership, table)
            if wishes.names(table):
                raise error
            joining.refused.append((table, error))
        elif table.oid in newborn:
            joining.tables.append(table)
        elif wishes.names(table):
            raise UsageError(
                f"table {table.qualified_name} joins a group that streams already: the rows that it holds would be missing at "
                "the targets",
                f"start once with --without-copy {table.qualified_name} to follow it from now on, or run 'pgsluice tables add "
                f"{table.qualified_name} --without-copy' while it streams; with its rows: {_START_AGAIN}",
            )
    return joining


def _returned(membership: Membership, table: SourceTable) -> TerminalError:
    go_on = f"start once with --without-copy {table.qualified_name} to follow it from now on as it is; else {_START_AGAIN}"
    away = next((entry for entry in membership.left if entry.oid == table.oid), None)
    if away is None:
        fact = f"table {table.qualified_name} was dropped and created again: the targets hold rows of the old one"
        return TerminalError(fact, go_on)
    since = f"{away.lsn} ({away.at[:19]})"
    fact = f"table {table.qualified_name} was not replicated from {since} on: its changes since then are missing at the targets"
    return TerminalError(fact, go_on)


def listed(names: Sequence[str], most: int = 20) -> str:
    """Joins names with commas, as an option takes them."""
    return (
        ",".join(names) if len(names) <= most else f"{','.join(names[:most])},… ({len(names)} in all; schema.* names a schema's)"
    )


def leaving(
    membership: Membership,
    publication: Publication,
    tables: Collection[SourceTable],
    dropped: Mapping[int, str],
    at: str,
) -> list[Break]:
    """Returns the members that are not among ``tables``; ``dropped`` has the reasons of some. Changes of one that is
    still published are missing from now on, ``at``."""
    selected = {table.oid for table in tables}
    left = []
    for member in membership.members:
        if member.oid in selected:
            continue
        is_published = member.oid in publication.oids
        since, when = (publication.lsn, at) if is_published else (membership.seen_lsn, membership.seen_at)
        reason = dropped.get(member.oid, "it is no longer among the tables")
        left.append(Break(member.oid, member.schema, member.table, since, when, reason))
    return left
