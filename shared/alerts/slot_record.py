"""The replicator's report about its slot, for processes without a connection to the source: ``slot`` in the state bucket."""

from __future__ import annotations

from dataclasses import dataclass

SLOT_KEY = "slot"
TELLING_INTERVAL_S = 30.0
FRESH_S = 4 * TELLING_INTERVAL_S
"""An older record is not current."""


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """``lost`` is why the server invalidated the slot, "" if it did not. ``lag_bytes`` of WAL are not confirmed; after
    ``safe_wal_bytes`` more the server invalidates it (None: never)."""

    name: str
    wal_status: str
    lost: str
    lag_bytes: int | None = None
    safe_wal_bytes: int | None = None


def remedy_of_loss(lost: str) -> str:
    """Returns what to set at the source, so that it does not invalidate the next slot for the same reason (manual:
    invalidation_reason)."""
    match lost:
        case "idle_timeout":
            return "set idle_replication_slot_timeout to 0"
        case "wal_level_insufficient":
            return "set wal_level to logical"
    return "raise max_slot_wal_keep_size"
