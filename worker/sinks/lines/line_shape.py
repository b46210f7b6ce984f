"""Which JSON stands on a line: our own (``json_lines``) or pg_flo's (``pg_flo_lines``)."""

from __future__ import annotations

import enum

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.worker.sinks.lines import json_lines, pg_flo_lines


class LineShape(enum.Enum):
    """``value`` is how the option spells it."""

    JSON = "json"
    PG_FLO = "pg-flo"

    def encode(self, message: MessageChanges, *, transactions: bool) -> list[bytes]:
        """As ``json_lines.encode_lines``. pg_flo's shape has no lines for transactions."""
        if self is LineShape.PG_FLO:
            return pg_flo_lines.encode_lines(message)
        return json_lines.encode_lines(message, transactions=transactions)

    def encode_copied(self, copied: CopiedRows) -> list[bytes]:
        """As ``json_lines.encode_copied``."""
        return pg_flo_lines.encode_copied(copied) if self is LineShape.PG_FLO else json_lines.encode_copied(copied)
