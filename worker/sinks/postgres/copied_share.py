"""The receipt of a partition of copied rows: the rows themselves are in their tables by then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from shared.errors import WireError
from shared.table import Table


@dataclass(frozen=True, slots=True)
class CopiedShare:
    """``sequences`` are the messages that were loaded, by this attempt or another. ``restarted`` tables are copied anew: they are
    to be emptied, and then nothing was loaded with them."""

    sequences: tuple[int, ...]
    restarted: tuple[Table, ...]

    def encode(self) -> bytes:
        return orjson.dumps({"sequences": self.sequences, "restarted": [table.encode() for table in self.restarted]})

    @classmethod
    def decode(cls, body: bytes) -> CopiedShare:
        """Raises WireError for bytes that ``encode`` does not make."""
        try:
            share: Any = orjson.loads(body)
            return cls(tuple(map(int, share["sequences"])), tuple(Table.decode(table) for table in share["restarted"]))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a receipt of the Postgres sink is malformed ({type(error).__name__})") from None
