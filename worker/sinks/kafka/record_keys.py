"""The keys of records, made a column at a time as lines are (``lines.json_rows``): ``{"id":7}``, in the values of the format.

They are Debezium's, as its JSON converter writes them without schemas. Rows of a table without a key have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.pgoutput.messages import NO_OLD_ROW
from pgsluice.shared.rows.changes import DELETE, UPDATE, TableChanges
from pgsluice.shared.wire.table import UNCHANGED, Table, Value
from pgsluice.worker.sinks.kafka.topic_pattern import KeyPattern
from pgsluice.worker.sinks.lines import debezium_values
from pgsluice.worker.sinks.lines.debezium_lines import with_milliseconds
from pgsluice.worker.sinks.lines.json_rows import KINDS, NULL, JsonColumn, Kinds, json_column, lines_of_slots, object_slots
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding, LineShape
from pgsluice.worker.sinks.lines.pg_flo_lines import PG_FLO_KINDS
from pgsluice.worker.sinks.lines.presentation import spelled

_KINDS: dict[LineShape, Kinds] = {
    LineShape.JSON: KINDS,
    LineShape.FLAT: KINDS,
    LineShape.PG_FLO: PG_FLO_KINDS,
    LineShape.DEBEZIUM: debezium_values.KINDS,
}
_NO_TEXTS = JsonColumn((), b"")

Keys = Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """Picklable."""

    pattern: KeyPattern
    form: LineEncoding

    def of_table(self, table: Table) -> bytes | None:
        """Returns the Kafka key shared by all rows of the table; None if each row has its own."""
        return None if self.pattern.names_row else self.pattern.around(table.schema, table.name)[0]

    def of_changes(self, changes: TableChanges) -> tuple[Keys, Keys]:
        """Returns the key of each row, and the key that it had before when an update changed it, else None."""
        table = changes.table
        columns = [_identifying(changes, index) for index in table.key]
        keys = self._keys(table, columns, len(changes))
        nothing: Keys = [None] * len(changes)
        if changes.old is None or changes.old_kinds is None or UPDATE not in changes.operations or not table.key:
            return keys, nothing
        before = [changes.old[index] for index in table.key]
        moved = [row for row in _updates(changes) if any(new[row] != old[row] for new, old in zip(columns, before, strict=True))]
        if not moved:
            return keys, nothing
        left = self._objects(table, [[column[row] for row in moved] for column in before], len(moved))
        taken = self._objects(table, [[column[row] for row in moved] for column in columns], len(moved))
        old_keys = zip(moved, left, taken, self._wrapped(table, left), strict=True)
        places = {row: key for row, old, new, key in old_keys if old != new}  # two spellings may be one value
        return keys, [places.get(row) for row in range(len(changes))]

    def _keys(self, table: Table, columns: Sequence[Sequence[Value]], count: int) -> Keys:
        """``columns`` hold the values of the table's key, in its order."""
        if not self.pattern.names_row:
            return self.pattern.around(table.schema, table.name) * count
        return self._wrapped(table, self._objects(table, columns, count)) if table.key else [None] * count

    def _wrapped(self, table: Table, objects: Sequence[bytes]) -> Keys:
        around = self.pattern.around(table.schema, table.name)
        return objects if around == [b"", b""] else [each.join(around) for each in objects]

    def _objects(self, table: Table, columns: Sequence[Sequence[Value]], count: int) -> list[bytes]:
        kinds = _KINDS[self.form.shape]
        table = spelled(table, self.form.column_case)
        if self.form.shape is LineShape.DEBEZIUM:
            table = with_milliseconds(table)
        texts = [_NO_TEXTS] * len(table.columns)
        for index, values in zip(table.key, columns, strict=True):
            texts[index] = _json(table, index, values, kinds)
        slots = [*object_slots(table, texts, table.key), b"\n"]
        return [line[:-1] for line in lines_of_slots(slots, count)]


def _json(table: Table, index: int, values: Sequence[Value], kinds: Kinds) -> JsonColumn:
    sent = [value for value in values if value.__class__ is bytes]
    column = json_column(table, table.columns[index], sent, kinds)
    if len(sent) == len(values):
        return column
    present = iter(column.whole())
    return JsonColumn([next(present) if value.__class__ is bytes else NULL for value in values], b"")


def _updates(changes: TableChanges) -> list[int]:
    """Returns rows of updates that have an old image."""
    assert changes.old_kinds is not None
    pairs = enumerate(zip(changes.operations, changes.old_kinds, strict=True))
    return [row for row, (operation, kind) in pairs if operation == UPDATE and kind != NO_OLD_ROW]


def _identifying(changes: TableChanges, index: int) -> Sequence[Value]:
    """Returns the column's values by which rows are known from now on; of a delete, those of the row that is gone."""
    new = changes.new[index]
    if changes.old is None:
        return new
    old = changes.old[index]
    return [
        before if operation == DELETE or after is UNCHANGED else after
        for operation, before, after in zip(changes.operations, old, new, strict=True)
    ]
