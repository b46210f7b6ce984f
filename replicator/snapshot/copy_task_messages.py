"""The messages to the Spark tasks of a copy and their answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pgsluice.replicator.snapshot.plan import PageRange
from pgsluice.replicator.snapshot.stream_share import Room, StreamShare
from pgsluice.shared.config.settings import NatsSettings, PostgresSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.run_mark import NO_RUN, RunMark


class RangeStatus(enum.Enum):
    """The result of one attempt at a range."""

    DONE = "done"
    FAILED = "failed"
    """A later attempt may succeed; the number of attempts is limited."""
    UNAVAILABLE = "unavailable"
    """Source or broker cannot be reached, independent of the range."""
    REWRITTEN = "rewritten"
    """The relation is no longer the one that the snapshot shows: its table needs a new snapshot."""
    SNAPSHOT_GONE = "snapshot gone"
    """Every range that is not done needs a new snapshot."""
    NEEDS_ROOM = "needs room"
    """A row of it is larger than a task may publish in parallel to others."""
    REFUSED = "refused"
    """Cannot succeed until an operator acts."""
    UNREADABLE = "unreadable"
    """A query fails on a row of it: other rows may be readable, and this one when an operator acts."""
    TIMED_OUT = "timed out"
    """A query took longer than it may: perhaps it does not the next time, or for fewer rows."""


class SteppedRows(NamedTuple):
    """COPY text of the rows that came out; the places, from 0 on, of rows that went in and that steps fail on, and why."""

    rows: int
    data: bytes
    failed: tuple[tuple[int, str], ...]


class RowSteps(Protocol):
    """Steps applied to a query's rows before they are published (``replicator.pipelines.steps``). Sent to tasks."""

    def apply(self, rows: int, data: bytes) -> SteppedRows: ...


@dataclass(frozen=True, slots=True)
class CopyParameters:
    """The common parameters of one snapshot's ranges."""

    group: str
    source: PostgresSettings
    nats: NatsSettings
    system_id: str
    snapshot_name: str
    snapshot_id: str
    share: StreamShare
    pauses: Pauses
    """Backoff between publish attempts."""
    session: tuple[tuple[str, str], ...] = ()
    """Settings of the reading sessions for ranges of a query; pages have fixed settings."""
    steps: RowSteps | None = None
    most_dead: int = 0
    """Limit on the rows, in all, that may be set aside because steps fail on them."""


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A range to be copied. ``head`` begins every body of the table (``shared.wire.snapshot_message.encode_table``).
    ``ledger_revision`` is the revision of the table's record that announced the snapshot. ``room`` limits the size of
    its bodies. ``key_fields`` are the places of the fields that rows of a query are ordered by, () for pages. ``mark``
    is for a query's rows, ``rows`` how many of them were counted (None if not counted), ``count`` the statement that
    counts them."""

    pages: PageRange
    attempt: int
    head: bytes = field(repr=False)
    ledger_revision: int = 0
    room: Room = Room.SHARE
    key_fields: tuple[int, ...] = ()
    mark: RunMark = NO_RUN
    rows: int | None = None
    count: str = ""


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """``rows`` and ``bytes`` of COPY text are of the whole range, whichever process published them. ``last_sequence``
    is where its last message is stored. ``is_whole``: none of its bodies was cut into chunks, as far as is known.
    ``error`` is why it is not DONE."""

    pages: PageRange
    status: RangeStatus
    rows: int = 0
    bytes: int = 0
    last_sequence: int = 0
    is_whole: bool = False
    error: PgsluiceError | None = None


class RangeFailedError(Exception):
    """One attempt at a range did not succeed."""

    def __init__(self, status: RangeStatus, error: PgsluiceError) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error
