"""The presentation of rows in lines of every shape: the spelling of columns' names, and the old row of an update.

    as-is    orderId, order_id          lower    orderid, order_id         upper    ORDERID, ORDER_ID
    snake    order_id, order_id         camel    orderId, orderId

Rules and routes know columns by their own names: this comes after them.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_ROW
from pgsluice.shared.rows.changes import UPDATE, CopiedRows, DefinitionChange, MessageChanges, Part, TableChanges, Truncation
from pgsluice.shared.wire.table import UNCHANGED, Table

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^\w]+|_+")


class ColumnCase(enum.Enum):
    """``value`` is how the option spells it."""

    AS_IS = "as-is"
    LOWER = "lower"
    UPPER = "upper"
    SNAKE = "snake"
    CAMEL = "camel"

    def spell(self, name: str) -> str:
        match self:
            case ColumnCase.AS_IS:
                return name
            case ColumnCase.LOWER:
                return name.lower()
            case ColumnCase.UPPER:
                return name.upper()
            case ColumnCase.SNAKE:
                return "_".join(word.lower() for word in _words(name)) or name
            case ColumnCase.CAMEL:
                first, *others = _words(name) or [name]
                return first.lower() + "".join(word.capitalize() for word in others)
            case unreachable:
                assert_never(unreachable)


def _words(name: str) -> list[str]:
    return [word for word in _WORD_ENDS.split(name) if word]


@lru_cache(maxsize=1024)
def spelled(table: Table, case: ColumnCase) -> Table:
    """Returns ``table`` with the names of its columns in that case. Raises TerminalError when two of them become one."""
    names = [case.spell(column.name) for column in table.columns]
    for name, times in Counter(names).items():
        if times > 1:
            both = " and ".join(column.name for column, spelling in zip(table.columns, names, strict=True) if spelling == name)
            raise TerminalError(
                f"columns {both} of {table.qualified_name} are both {name!r} with column-case: {case.value}",
                "leave column-case out, or rename one of them by a route",
            )
    return replace(table, columns=tuple(replace(column, name=name) for column, name in zip(table.columns, names, strict=True)))


def presented(message: MessageChanges, case: ColumnCase, *, include_before: bool) -> MessageChanges:
    """Returns ``message`` in that case; without ``include_before`` only deletes, and updates that change the key, have
    an old row."""
    if case is ColumnCase.AS_IS and include_before:
        return message
    return replace(message, parts=[_presented_part(part, case, include_before=include_before) for part in message.parts])


def presented_copy(copied: CopiedRows, case: ColumnCase) -> CopiedRows:
    return copied if case is ColumnCase.AS_IS else replace(copied, table=spelled(copied.table, case))


def _presented_part(part: Part, case: ColumnCase, *, include_before: bool) -> Part:
    match part:
        case TableChanges():
            changes = part if include_before else _without_old_rows(part)
            return changes if case is ColumnCase.AS_IS else replace(changes, table=spelled(changes.table, case))
        case Truncation() | DefinitionChange():
            return part
        case unreachable:
            assert_never(unreachable)


def _without_old_rows(changes: TableChanges) -> TableChanges:
    """Values that an update did not send are taken from its old row first, as far as that holds them."""
    if changes.old is None or changes.old_kinds is None or UPDATE not in changes.operations:
        return changes
    kinds = bytearray(changes.old_kinds)
    new = [list(column) for column in changes.new]
    for row, operation in enumerate(changes.operations):
        if operation != UPDATE or kinds[row] != OLD_ROW or _changes_key(changes, row):
            continue  # the key alone is sent when it was changed
        for index, column in enumerate(new):
            if column[row] is UNCHANGED:
                column[row] = changes.old[index][row]
        kinds[row] = NO_OLD_ROW
    if not kinds.strip(bytes([NO_OLD_ROW])):
        return replace(changes, new=new, old=None, old_kinds=None)
    return replace(changes, new=new, old_kinds=kinds)


def _changes_key(changes: TableChanges, row: int) -> bool:
    assert changes.old is not None
    return any(changes.new[index][row] not in (UNCHANGED, changes.old[index][row]) for index in changes.table.key)
