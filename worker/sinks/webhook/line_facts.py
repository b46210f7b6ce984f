"""What the driver has to know of a line that tasks encoded, in whichever shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class LineFacts:
    """``operation`` is that of our own lines: READ for a copied row. ``position`` is "" for what has none. ``commit_lsn`` is ""
    but for a transaction's begin and commit. ``row`` tells whether two lines are about the same row; of a table without a key,
    whether they are about the same table."""

    operation: str
    position: str
    commit_lsn: str
    row: bytes


def read_line(text: bytes) -> LineFacts:
    content = orjson.loads(text)
    return _of_pg_flo(content) if "Type" in content else _of_ours(content)


def _of_ours(line: dict[str, Any]) -> LineFacts:
    row = orjson.dumps([line.get("schema"), line.get("table"), line.get("key")])
    return LineFacts(line["operation"], line.get("position") or "", line.get("commit_lsn", ""), row)


def _of_pg_flo(line: dict[str, Any]) -> LineFacts:
    values = line.get("NewTuple") or line.get("OldTuple") or {}
    key = [values.get(name) for name in line["ReplicationKey"]["Columns"]]
    position = line["Position"] or ""
    is_copied = line["Type"] == "INSERT" and not position
    return LineFacts("READ" if is_copied else line["Type"], position, "", orjson.dumps([line["Schema"], line["Table"], key]))
