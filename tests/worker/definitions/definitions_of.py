"""Definitions made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pgsluice.shared.wire.definition import DefinedColumn, DefinedPartition, TableDefinition
from pgsluice.shared.wire.table import ReplicaIdentity

ID = DefinedColumn(1, "id", 20, "bigint", -1, True, 1, "", "", None, False, True)
NOTE = DefinedColumn(2, "note", 25, "text", -1, False, None, "", "", None, False, True)
TABLE = TableDefinition(16400, "public", "t", "r", 16400, ReplicaIdentity.DEFAULT, (1,), True, (ID, NOTE), ())


def column(number: int, name: str, **changed: Any) -> DefinedColumn:
    """Of type text."""
    return replace(NOTE, number=number, name=name, **changed)


def partition(oid: int, name: str) -> DefinedPartition:
    return DefinedPartition(oid, TABLE.oid, "public", name, oid, "FOR VALUES IN (1)", "(id = 1)")


def with_columns(*columns: DefinedColumn, **changed: Any) -> TableDefinition:
    return replace(TABLE, columns=columns, **changed)
