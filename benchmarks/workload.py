"""What is written at a source while nothing reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.servers import Database

_IN_PARTS = """
DO $$ BEGIN
    FOR part IN {first}..{last} BY {step} LOOP
        {statement};
        COMMIT;
    END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """``create`` makes ``tables`` and the rows that are there before, alike in every database; ``write`` then makes ``changes``
    changes at the source."""

    tables: tuple[str, ...]
    changes: int
    create: Callable[[Database], None]
    write: Callable[[Database], None]


def execute_in_parts(database: Database, statement: str, last: int, *, first: int = 1, step: int = 1) -> None:
    """``statement`` in a transaction of its own for ``part`` = ``first``, ``first + step`` and so on, up to ``last``."""
    database.execute(_IN_PARTS.format(first=first, last=last, step=step, statement=statement))
