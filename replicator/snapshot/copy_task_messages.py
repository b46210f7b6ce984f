"""What goes to the Spark tasks of a copy and what comes back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pgsluice.replicator.snapshot.plan import PageRange
from pgsluice.shared.config.settings import NatsSettings, PostgresSettings
from pgsluice.shared.errors import PgsluiceError


class RangeStatus(enum.Enum):
    """How one attempt at a range ended."""

    DONE = "done"
    FAILED = "failed"
    """Perhaps it succeeds the next time, but not for ever."""
    UNAVAILABLE = "unavailable"
    """Source or broker cannot be reached: that says nothing about the range."""
    REWRITTEN = "rewritten"
    """The relation is no longer the one that the snapshot shows: its table needs a new snapshot."""
    SNAPSHOT_GONE = "snapshot gone"
    """Every range that is not done needs a new snapshot."""
    REFUSED = "refused"
    """It cannot succeed until somebody acts."""


@dataclass(frozen=True, slots=True)
class CopyParameters:
    """What the ranges of one snapshot have in common. ``cut_bytes`` of rows make a message, ``chunk_bytes`` is the most that one
    NATS message may hold: both are the same for every attempt, or a range would not be cut the same way each time."""

    group: str
    source: PostgresSettings
    nats: NatsSettings
    system_id: str
    snapshot_name: str
    snapshot_id: str
    cut_bytes: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A range to be copied. ``head`` is what every body of the table begins with (``shared.wire.snapshot_message.encode_table``).
    ``ledger_revision`` is the revision of the table's record that announced the snapshot."""

    pages: PageRange
    attempt: int
    head: bytes = field(repr=False)
    ledger_revision: int = 0


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """``rows`` and ``bytes`` of COPY text are those of the whole range, whoever published them. ``last_sequence`` is where its
    last message is stored. ``error`` says why it is not DONE."""

    pages: PageRange
    status: RangeStatus
    rows: int = 0
    bytes: int = 0
    last_sequence: int = 0
    error: PgsluiceError | None = None


class RangeFailedError(Exception):
    """One attempt at a range did not succeed."""

    def __init__(self, status: RangeStatus, error: PgsluiceError) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error
