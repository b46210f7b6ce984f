"""The facts about its run in every message of a pipeline's run, in the header ``Pgsluice-Run-Mark`` as JSON.

    run       which one, from 1
    version   grows from run to run, and from attempt to attempt: of two rows with one key the one of the higher version is newer
    replaces  1: when the run is whole, its rows take the place of all earlier ones. They must be invisible before
    ends      1, only on the last message of a run that replaces: it is whole
    deletes   0: all rows must be deleted, and hold nothing but the key; n: the rows that have a value in their n-th column (of a
              boolean: that is true). Left out without any

An earlier version of pgsluice would add rows that replace others, and rows that delete some: messages that begin such a
run are of a format that it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pgsluice.shared.wire.table import Table, Value

ALL_ROWS = 0

_BOOLEAN = 16  # the type's oid


@dataclass(frozen=True, slots=True)
class RunMark:
    """``run`` is 0 for rows of a copy, ``version`` where an earlier version of pgsluice published a run. ``deletes`` is ALL_ROWS,
    the number of a column from 1, or None."""

    run: int = 0
    version: int = 0
    replaces: bool = False
    ends: bool = False
    deletes: int | None = None

    @property
    def needs_new_worker(self) -> bool:
        return self.replaces or self.deletes is not None

    def is_deleted(self, table: Table, row: Sequence[Value]) -> bool:
        """Returns whether ``row`` must be deleted."""
        if self.deletes is None or self.deletes == ALL_ROWS:
            return self.deletes == ALL_ROWS
        value = row[self.deletes - 1]
        is_boolean = table.columns[self.deletes - 1].type_oid == _BOOLEAN
        return value == b"t" if is_boolean else value is not None

    def encode(self) -> str:
        """Encodes as ASCII."""
        said: dict[str, int] = {"run": self.run, "version": self.version}
        if self.replaces:
            said["replaces"] = 1
        if self.ends:
            said["ends"] = 1
        if self.deletes is not None:
            said["deletes"] = self.deletes
        return orjson.dumps(said).decode()

    @classmethod
    def decode(cls, text: str) -> RunMark:
        """Decodes the mark, and ignores unknown fields. Raises ValueError for a text that ``encode`` never produces."""
        said: Any = orjson.loads(text)
        if not isinstance(said, dict):
            raise ValueError("a run's mark is no object")
        return cls(
            run=_number(said, "run"),
            version=_number(said, "version"),
            replaces=said.get("replaces") == 1,
            ends=said.get("ends") == 1,
            deletes=_number(said, "deletes") if "deletes" in said else None,
        )


def _number(said: dict[str, Any], name: str) -> int:
    number = said.get(name)
    if type(number) is not int:
        raise ValueError(f"a run's mark lacks {name}")
    return number


NO_RUN = RunMark()
