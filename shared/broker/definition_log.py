"""The definitions that a group published, and their outcomes: records of the state bucket, which outlive streams and slots.

    definitions             the newest definitions, written by the replicator before it publishes them, and counts of messages
                            that were forged or are missing
    definitions.<worker>    what a worker did with the newest ones, written when the batch that held them is applied

Each is one key with one writer, bounded by KEPT and by MOST_BYTES, so nothing grows with time. Entries go by position:
a session that goes back, or a batch that comes twice, notes the same again. No default and no value of a row is in
them.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.record import MalformedError, malformed, pack, unpack
from pgsluice.shared.wire.position import Position

KEPT = 500
"""Definitions, the newest ones."""

MOST_BYTES = 40_000
"""Limit of a record's packed entries: a server with the smallest ``max_payload`` accepts it."""

MOST_CHANGES = 20
"""Limit per definition; a user who adds a hundred columns at once need not read all of them."""

_KEY = "definitions"
_WORKER_PREFIX = "definitions."
_REMEDY = "delete the key: schema changes are recorded again from now on"


class DefinitionOutcome(enum.StrEnum):
    """A worker's action for a definition, as shown to users."""

    APPLIED = "applied"
    """The destination is altered, where it had to be."""
    KEPT = "kept"
    """The destination keeps what the source has no more."""
    IGNORED = "ignored"
    PASSED_ON = "passed on"
    """Forwarded as a line, in its place between the others."""
    PASSED_OVER = "passed over"
    """The sink takes no definitions."""
    HELD = "held"
    """Rows continue without a new column, until an operator decides."""
    STOPPED = "stopped"
    """The worker stopped before it, for an operator."""
    ACCEPTED = "accepted"
    """An operator declared it done."""
    RECOPIED = "recopied"
    """A copy of the table holds what it came to."""


@dataclass(frozen=True, slots=True)
class LoggedDefinition:
    """``committed_at`` is RFC 3339, "" if unknown. ``name`` is the table's or type's name, "" if the source could not
    provide it. ``changes`` are words (``shared.definitions.wording``)."""

    position: Position
    committed_at: str
    tag: str
    oid: int
    name: str
    changes: tuple[str, ...]


@dataclass(slots=True)
class Count:
    """A count of events that are seen again when a session goes back: only those after ``through`` are new."""

    count: int = 0
    through: Position | None = None

    def add(self, position: Position) -> bool:
        """Returns whether it is new."""
        if self.through is not None and position <= self.through:
            return False
        self.count, self.through = self.count + 1, position
        return True


@dataclass(slots=True)
class DefinitionLog:
    """``definitions`` are ordered by position. ``forged`` counts messages that another client emitted in the group's
    name; ``missed`` counts tables that were found altered without a message."""

    definitions: list[LoggedDefinition] = field(default_factory=list)
    forged: Count = field(default_factory=Count)
    missed: Count = field(default_factory=Count)

    def note(self, definition: LoggedDefinition) -> bool:
        """Returns whether it is new."""
        found = bisect_left(self.definitions, definition.position, key=lambda each: each.position)
        if self.definitions[found : found + 1] and self.definitions[found].position == definition.position:
            return False
        if not found and len(self.definitions) >= KEPT:
            return False
        self.definitions.insert(found, definition)
        del self.definitions[:-KEPT]
        return True

    def forget(self, position: Position) -> None:
        self.definitions = [each for each in self.definitions if each.position != position]


@dataclass(frozen=True, slots=True)
class DefinitionLogRecord:
    """``newest`` is for readers, ``entries`` are packed. ``forged`` and ``missed`` are counts, each with the position
    up to which it was counted, "" at first."""

    newest: str
    entries: str
    forged: tuple[int, str] = (0, "")
    missed: tuple[int, str] = (0, "")

    MALFORMED_REMEDY: ClassVar[str] = _REMEDY


@dataclass(frozen=True, slots=True)
class OutcomesRecord:
    """``newest`` is for readers; ``entries`` are packed: position, outcomes and time of each."""

    newest: str
    entries: str

    MALFORMED_REMEDY: ClassVar[str] = _REMEDY


@dataclass(frozen=True, slots=True)
class NotedOutcome:
    """A worker's actions for one definition, whose parts may have different outcomes. ``at`` is RFC 3339."""

    outcomes: tuple[DefinitionOutcome, ...]
    at: str


Outcomes = dict[Position, NotedOutcome]


async def load_log(bucket: StateBucket) -> DefinitionLog:
    """Returns an empty one when none was written. Raises TerminalError for a record that ``store_log`` does not make."""
    entry = await bucket.read(_KEY, DefinitionLogRecord)
    if entry is None:
        return DefinitionLog()
    record = entry.value
    try:
        return DefinitionLog(
            [_definition(*each) for each in unpack(record.entries)], _count(record.forged), _count(record.missed)
        )
    except (MalformedError, TypeError, ValueError) as error:
        raise malformed(_KEY, bucket.described, type(error).__name__, _REMEDY) from None


async def store_log(bucket: StateBucket, log: DefinitionLog) -> None:
    """Raises TransientError when NATS does not answer."""
    entries, newest = _packed([_fields(each) for each in log.definitions])
    await bucket.put(_KEY, DefinitionLogRecord(newest, entries, _counted(log.forged), _counted(log.missed)))


async def load_outcomes(bucket: StateBucket, worker: str) -> Outcomes:
    """Returns the outcomes by position; empty if the worker noted none. Raises TerminalError for a record that
    ``store_outcomes`` does not write."""
    key = outcomes_key(worker)
    entry = await bucket.read(key, OutcomesRecord)
    if entry is None:
        return {}
    try:
        return {
            Position.parse(str(at)): NotedOutcome(_outcomes(said), str(time)) for at, said, time in unpack(entry.value.entries)
        }
    except (MalformedError, TypeError, ValueError) as error:
        raise malformed(key, bucket.described, type(error).__name__, _REMEDY) from None


async def store_outcomes(bucket: StateBucket, worker: str, outcomes: Mapping[Position, NotedOutcome]) -> None:
    """Raises TransientError when NATS does not answer."""
    newest = sorted(outcomes.items())[-KEPT:]
    entries, last = _packed([[str(position), list(noted.outcomes), noted.at] for position, noted in newest])
    await bucket.put(outcomes_key(worker), OutcomesRecord(last, entries))


def outcomes_key(worker: str) -> str:
    return _WORKER_PREFIX + worker


async def workers_with_outcomes(bucket: StateBucket) -> list[str]:
    """Returns the names of workers with outcomes, in order."""
    return sorted(key.removeprefix(_WORKER_PREFIX) for key in await bucket.keys() if key.startswith(_WORKER_PREFIX))


def shortened(changes: Iterable[str]) -> tuple[str, ...]:
    """Returns MOST_CHANGES of them, and how many more there are."""
    found = tuple(changes)
    left = len(found) - MOST_CHANGES
    return found if left <= 0 else (*found[:MOST_CHANGES], f"and {left} more")


def _packed(entries: list[list[Any]]) -> tuple[str, str]:
    """Returns the newest entries that fit, packed, and the position of the last one, "" without any."""
    packed = pack(entries)
    while len(packed) > MOST_BYTES and len(entries) > 1:
        entries = entries[(len(entries) + 3) // 4 :]
        packed = pack(entries)
    return packed, str(entries[-1][0]) if entries else ""


def _fields(each: LoggedDefinition) -> list[Any]:
    return [str(each.position), each.committed_at, each.tag, each.oid, each.name, list(each.changes)]


def _definition(position: str, committed_at: str, tag: str, oid: int, name: str, changes: list[str], *_: Any) -> LoggedDefinition:
    """Further fields are those of a later version."""
    return LoggedDefinition(
        Position.parse(str(position)), str(committed_at), str(tag), int(oid), str(name), tuple(map(str, changes))
    )


def _outcomes(said: list[str]) -> tuple[DefinitionOutcome, ...]:
    return tuple(map(DefinitionOutcome, said))


def _count(counted: tuple[int, str]) -> Count:
    count, through = counted
    return Count(count, Position.parse(through) if through else None)


def _counted(count: Count) -> tuple[int, str]:
    return count.count, "" if count.through is None else str(count.through)
