"""The forms of fields that lines of several formats have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Form:
    """Properties of a field in addition to its type: a regular expression that a text fulfils, and the field's meaning."""

    pattern: str = ""
    description: str = ""


Row: TypeAlias = dict[str, Any]
"""Columns by their names."""

_LSN = r"[0-9A-F]{1,8}/[0-9A-F]{1,8}"

Lsn = Annotated[str, Form(f"^{_LSN}$", "A place in the source's write-ahead log")]
Position = Annotated[str, Form(f"^{_LSN}:[0-9]+$", "Commit LSN of the transaction, and the change's number in it")]
Timestamp = Annotated[
    str,
    Form(r"^[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$", "When the transaction was committed, in UTC"),
]
Xid = Annotated[int, Form(description="The transaction's number at the source")]
Snapshot = Annotated[str, Form(description="The snapshot that the row was read under")]
Unchanged = Annotated[list[str], Form(description="Columns that the update did not touch and PostgreSQL did not send")]
