"""Changes that go on as another operation, because their row enters or leaves what the filters of its table let through."""

from __future__ import annotations

from pgsluice.rules.fate import Fate
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY, OLD_ROW
from pgsluice.shared.rows.changes import DELETE, INSERT, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Value

_FULL_IDENTITY = "a source table with REPLICA IDENTITY FULL would send it"


class Transition:
    """Changes rows of its own copy of ``changes``. ``failures`` says of the rows that could not be changed why not."""

    def __init__(self, changes: TableChanges) -> None:
        width = range(len(changes.table.columns))
        self.failures: dict[int, str] = {}
        self._table = changes.table
        self._new = [list(column) for column in changes.new]
        self._old: list[list[Value]] = [[None] * len(changes) for _ in width]
        if changes.old is not None:
            self._old = [list(column) for column in changes.old]
        self._kinds = bytearray(len(changes)) if changes.old_kinds is None else bytearray(changes.old_kinds)
        self._operations = bytearray(changes.operations)
        self.changes = TableChanges(changes.table, self._operations, changes.change_indexes, self._new, self._old, self._kinds)

    def apply(self, row: int, fate: Fate) -> None:
        match fate:
            case Fate.AS_INSERT:
                self._enter(row)
            case Fate.AS_DELETE:
                self._leave(row)
            case Fate.UNDECIDED:
                self.failures[row] = f"a value that the filter asks for was not sent; {_FULL_IDENTITY}"
            case Fate.KEEP | Fate.DROP:
                pass

    def _enter(self, row: int) -> None:
        for index, column in enumerate(self._table.columns):
            kind = self._kinds[row]
            if self._new[index][row] is UNCHANGED and (kind == OLD_ROW or (kind == OLD_KEY and column.identity_key)):
                self._new[index][row] = self._old[index][row]
            if self._new[index][row] is UNCHANGED:
                self.failures[row] = (
                    f"the row enters the filter, and its value of column '{column.name}' was not sent; {_FULL_IDENTITY}"
                )
            self._old[index][row] = None
        self._kinds[row] = NO_OLD_ROW
        self._operations[row] = INSERT

    def _leave(self, row: int) -> None:
        """Without an old row the key is the new row's: an update that changes the key sends the old one."""
        if self._kinds[row] == NO_OLD_ROW:
            keys = [index for index, column in enumerate(self._table.columns) if column.identity_key]
            for index in keys:
                self._old[index][row] = self._new[index][row]
            if not keys or any(self._old[index][row] is UNCHANGED for index in keys):
                self.failures[row] = (
                    "the row leaves the filter, and its key was not sent; give the source table a replica identity"
                )
            self._kinds[row] = OLD_KEY
        for column in self._new:
            column[row] = None
        self._operations[row] = DELETE
