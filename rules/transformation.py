"""Rules, then routes: the transformation of a message on its way from the decoder to a sink, as one object for tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from pgsluice.rules.bounds import RuleBudget
from pgsluice.rules.routing import NO_ROUTES, BoundRoute, Routing
from pgsluice.rules.rule import RejectedRow
from pgsluice.rules.ruleset import NO_RULES, BoundRules, RuleSet
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import OLD_KEY
from pgsluice.shared.rows.changes import (
    DELETE,
    INSERT,
    CopiedRows,
    DefinitionChange,
    MessageChanges,
    Part,
    TableChanges,
    Truncation,
)
from pgsluice.shared.rows.copy_text import decode_rows, encode_columns
from pgsluice.shared.wire.definition import DefinedColumn, TableDefined, TableDefinition, TablePublished
from pgsluice.shared.wire.published_definition import PublishedDefinition, added_columns, concerned, without_columns
from pgsluice.shared.wire.table import Table, TableName, Value


@dataclass(frozen=True, slots=True)
class Transformation:
    """Pure and picklable. Positions stay what they were: a message keeps its transactions, a change its index.

    ``names`` are the source's names of tables when its replicator started, by OID. A change can come under an older or
    a newer name: rules and routes apply to a table under both, so that renaming it does not uncover what is masked.
    ``held`` are columns that are left out before anything else happens, by OID and ``attnum``; those of a key never
    are. A worker fills it as it goes, and tasks get its content at that time.
    """

    rules: RuleSet = NO_RULES
    routing: Routing = NO_ROUTES
    names: Mapping[int, TableName] = field(default_factory=dict, compare=False)
    held: Mapping[int, frozenset[int]] = field(default_factory=dict, compare=False)

    def knowing(self, tables: Iterable[Table]) -> Transformation:
        """Returns the transformation with the names of ``tables``."""
        return replace(self, names={table.oid: (table.schema, table.name) for table in tables})

    @property
    def hash(self) -> str:
        """Hash in hexadecimal; equal for equal rules and routes, "" without any."""
        hashes = (self.rules.hash, self.routing.hash)
        return hashlib.sha256(" ".join(hashes).encode()).hexdigest() if any(hashes) else ""

    def apply(self, message: MessageChanges, budget: RuleBudget | None = None) -> tuple[MessageChanges, list[RejectedRow]]:
        """Returns the transformed message, and the rows that a rule could not process, which are not in it.

        Raises TerminalError when a table lacks a column that a rule or route names, BudgetSpentError.
        """
        rejected: list[RejectedRow] = []
        parts: list[Part] = []
        for part in message.parts:
            match part:
                case TableChanges():
                    kept = self._apply_rules(self._without_held(part), rejected, budget)
                    parts += [] if kept is None else self.routing.apply(kept, self.names)
                case Truncation():
                    tables = tuple(map(self._after_rules, part.tables))
                    truncation = self.routing.truncate(replace(part, tables=tables), self.names)
                    parts += [] if truncation is None else [truncation]
                case DefinitionChange(definition=definition, is_copied=is_copied):
                    parts.append(replace(part, definition=self.without_held(definition, is_past=is_copied)))
                case unreachable:
                    assert_never(unreachable)
        return replace(message, parts=parts), rejected

    def truncates(self, table: Table) -> bool:
        """Returns whether a truncation of the table continues to any destination."""
        return self.routing.truncate(Truncation((table,), 0, cascade=False, restart_identity=False), self.names) is not None

    def unguarded(self, definition: PublishedDefinition) -> list[DefinedColumn]:
        """Returns columns that are added to a table whose rules hide data, and that the rules do not name."""
        about, added = concerned(definition.event), added_columns(definition)
        if about is None or not added:
            return []
        names = {(about.schema, about.name), self.names.get(about.oid, (about.schema, about.name))}
        found = self.rules.unguarded(names, [column.name for column in added])
        return [column for column in added if column.name in found]

    def without_held(self, definition: PublishedDefinition, *, is_past: bool = False) -> PublishedDefinition:
        """Returns the definition for readers, without held columns. ``is_past``: no row comes that is like that. Raises
        TerminalError when its table has a column that rules have to list, and rows are like that from here on."""
        about = concerned(definition.event)
        if about is None:
            return definition
        left = without_columns(definition, self.held[about.oid]) if about.oid in self.held else definition
        return self._guarded(left, is_new=not is_past) if self.rules.entries else left

    def _guarded(self, definition: PublishedDefinition, *, is_new: bool) -> PublishedDefinition:
        event, previous = definition.event, definition.previous
        # the others hold no columns
        if not isinstance(event, TableDefined | TablePublished):
            return definition
        also = self.names.get(event.table.oid, (event.table.schema, event.table.name))
        guarded = replace(event, table=self.rules.defined(event.table, also, is_new=is_new))
        # a single kind: the previous definition is a table here
        was = self.rules.defined(previous, also, is_new=False) if isinstance(previous, TableDefinition) else previous
        return replace(definition, event=guarded, previous=was)

    def _without_held(self, changes: TableChanges) -> TableChanges:
        table = changes.table
        held = self.held.get(table.oid)
        if not held:
            return changes
        unknown = [column.name for i, column in enumerate(table.columns) if not column.number and i not in table.key]
        if unknown:
            raise TerminalError(
                f"a new column of table '{table.qualified_name}' is held, and it is not known whether it is"
                f" {' or '.join(unknown)}: the table was altered and no trigger reported it",
                "decide about the column that is held ('pgsluice ddl log' names it), and see that definitions are tracked",
            )
        kept = [i for i, column in enumerate(table.columns) if column.number not in held or i in table.key]
        left = replace(table, columns=tuple(table.columns[i] for i in kept))
        old = None if changes.old is None else [changes.old[i] for i in kept]
        new = [changes.new[i] for i in kept]
        return TableChanges(left, changes.operations, changes.change_indexes, new, old, changes.old_kinds)

    def apply_copied(self, copied: CopiedRows) -> tuple[list[CopiedRows], list[RejectedRow]]:
        """Like ``apply``, for copied rows, which are INSERTs to rules and routes: returns the rows for each
        destination. ``change_index`` of a rejected row counts the rows of the message. Text without matching rules
        passes unchanged."""
        rejected: list[RejectedRow] = []
        if copied.deletes:
            return self._apply_deleted(copied)
        if not copied.rows:
            copied = replace(copied, table=self._after_rules(copied.table))
        if copied.rows and self._looks_into(copied.table):
            columns = decode_rows(bytes(copied.data), len(copied.table.columns))
            numbers = list(map(copied.row_number, range(copied.rows)))
            rows = TableChanges(copied.table, bytearray([INSERT]) * copied.rows, numbers, columns)
            kept = self._apply_rules(self._without_held(rows), rejected)
            routed = [] if kept is None else self.routing.apply(kept, self.names)
            going = [_encoded(copied, changes) for changes in routed]
        else:
            routes = self._routes_of(copied.table)
            going = (
                [copied]
                if routes is None
                else [replace(copied, table=route.destination) for route in routes if route.takes(INSERT)]
            )
        return [replace(rows, more_follow=True) for rows in going[:-1]] + going[-1:], rejected

    def _apply_deleted(self, copied: CopiedRows) -> tuple[list[CopiedRows], list[RejectedRow]]:
        """Applies deletes of copied rows: DELETEs to rules and routes, which know only the keys."""
        rejected: list[RejectedRow] = []
        old = decode_rows(bytes(copied.data), len(copied.table.columns))
        numbers = list(map(copied.row_number, range(copied.rows)))
        nothing: list[list[Value]] = [[None] * copied.rows for _ in old]
        kinds = bytearray([OLD_KEY]) * copied.rows
        rows = TableChanges(copied.table, bytearray([DELETE]) * copied.rows, numbers, nothing, old, kinds)
        kept = self._apply_rules(self._without_held(rows), rejected)
        routed = [] if kept is None else self.routing.apply(kept, self.names)
        going = [_encoded(copied, changes) for changes in routed]
        return [replace(rows, more_follow=True) for rows in going[:-1]] + going[-1:], rejected

    def problems(self, tables: Sequence[Table]) -> list[str]:
        """Returns everything wrong with rules and routes, ``tables`` being all the tables there are."""
        return [*self.rules.check(tables), *self.routing.problems(tables)]

    def destinations(self, table: Table) -> list[Table]:
        """Returns the destinations of ``table`` by its routes. Raises TerminalError when it cannot take one."""
        left = self._after_rules(table)
        routes = self._routes_of(left)
        return [left] if routes is None else [route.destination for route in routes]

    def warnings(self, tables: Sequence[Table]) -> list[str]:
        """Returns facts that may surprise."""
        return self.rules.warnings(tables)

    def may_leave_rows_out(self, oid: int, name: TableName) -> bool:
        """Returns whether a change of this table of the source may rightly meet no row: a filter or a route touches it."""
        names = {name, self.names.get(oid, name)}
        return self.rules.filters(names) or self.routing.touches(names)

    def _looks_into(self, table: Table) -> bool:
        routes = self._routes_of(table) or ()
        touches = self._rules_of(table) is not None or table.oid in self.held
        return touches or not all(route.keeps_every_column for route in routes)

    def _rules_of(self, table: Table) -> BoundRules | None:
        return self.rules.bind(table, self.names.get(table.oid)) if self.rules.entries else None

    def _after_rules(self, table: Table) -> Table:
        rules = self._rules_of(table)
        return table if rules is None else rules.table

    def _routes_of(self, table: Table) -> tuple[BoundRoute, ...] | None:
        return self.routing.bind(table, self.names)

    def _apply_rules(
        self, changes: TableChanges, rejected: list[RejectedRow], budget: RuleBudget | None = None
    ) -> TableChanges | None:
        bound = self._rules_of(changes.table)
        if bound is None:
            return changes
        outcome = bound.apply(changes, budget)
        rejected += outcome.rejected
        return outcome.changes


def _encoded(copied: CopiedRows, rows: TableChanges) -> CopiedRows:
    columns = rows.old if copied.deletes and rows.old is not None else rows.new
    data = memoryview(encode_columns(columns, len(rows)))
    return replace(copied, table=rows.table, rows=len(rows), data=data, numbers=tuple(rows.change_indexes))


UNTRANSFORMED = Transformation()
