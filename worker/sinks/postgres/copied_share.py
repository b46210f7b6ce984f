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
    to be emptied, and then nothing was loaded with them. ``filled`` are the tables of the messages, where who
    commits wants to know."""

    sequences: tuple[int, ...]
    restarted: tuple[Table, ...]
    filled: tuple[Table, ...] = ()

    def encode(self) -> bytes:
        tables = {"restarted": self.restarted, "filled": self.filled}
        encoded = {name: [table.encode() for table in of_kind] for name, of_kind in tables.items()}
        return orjson.dumps({"sequences": self.sequences} | encoded)

    @classmethod
    def decode(cls, body: bytes) -> CopiedShare:
        """Raises WireError for bytes that ``encode`` does not make."""
        try:
            share: Any = orjson.loads(body)
            restarted, filled = (tuple(map(Table.decode, share[name])) for name in ("restarted", "filled"))
            return cls(tuple(map(int, share["sequences"])), restarted, filled)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a receipt of the Postgres sink is malformed ({type(error).__name__})") from None
