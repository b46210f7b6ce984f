"""The protocol between a batch and a sink.

A sink is two objects. The ``Sink`` lives in the driver and is never pickled. Its ``writer()`` is pickled into Spark
tasks and must hold settings only, no connection.

For every batch, in this order:

1. In Spark tasks, in parallel: ``PartitionWriter.write(partition, messages)`` is called once per partition (more than
   once when Spark retries or speculates a task; only one attempt's receipts are kept). It yields ``bytes``, its
   receipts.
2. In the driver, once, after every task of the batch succeeded (COLLECTED, AHEAD) or while they run one after the other
   (STREAMED): ``Sink.commit(receipts)`` with the receipts in commit order. When it returns, every change of the batch
   and the new position are durable together, or, for sinks that cannot do that, the changes before the position.

"The same batch may come twice" is part of the contract: after a crash between 1 and 2, or inside 2, the batch is read
again from the position that ``open`` returned. A sink without transactions repeats it; one with transactions must not.

Before a table's changes come the rows of it that a snapshot copied, in the same way with ``write_copied``. A batch
holds the one or the other, never both. While a table is copied the others continue: its changes are left out of their
batches and come later, in separate batches (``Lane``), which cover messages that the others have passed.

Every call except ``close`` may raise:

- ``TransientError`` (``pgsluice.shared.errors``): a transient error. The worker calls again with the same batch, after
  a pause.
- ``TerminalError`` or ``UsageError``: a table, a permission or the destination as a whole is wrong. The worker stops;
  an operator must act.
- ``RejectedChanges`` (``pgsluice.worker.dead_letters.rejection``), by ``commit``, ``write`` and ``write_copied`` only:
  these changes can never be applied, and the rest of the batch could. By then nothing of the batch may be durable that
  a second attempt would double. The worker sets them aside as dead letters, with later changes of the same rows, and
  the batch comes again without them, perhaps cut into other receipts. Name as many as can be found in one pass, and
  hold back later changes of their rows meanwhile.
- ``WriteAgain`` (same module), by ``commit`` only: the batch comes again at once, without a pause.

Anything else is a defect of the sink. It ends the worker, which logs the error's kind and place, but not its text: that
may quote a row.

Definitions, of tables that the source altered, are among the changes, each in a separate message and partition. The
sink chooses how to handle them: in the driver (``AlteredSink``), or in its writer (``DefinedSink``). Any other sink
ignores them.

Optional methods of a sink are in ``abilities``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, assert_never

import orjson

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import TableName


class Lane(enum.Enum):
    """The one of a worker's three positions that a batch moves."""

    COPIED = "copied"
    """Rows of the snapshot stream."""
    CHANGES = "changes"
    """The stream of changes, without the tables that are being copied while the others continue."""
    CATCH_UP = "catch-up"
    """The stream of changes again, for the tables that were left out and whose copies are applied now."""


class Delivery(enum.Enum):
    """The way of receipts to the driver."""

    COLLECTED = "collected"
    """All at once when every task is done: receipts must be small, tasks run in parallel."""
    AHEAD = "ahead"
    """Like COLLECTED, but tasks of the next batch may run while ``commit`` is under way: it must leave their results
    alone."""
    STREAMED = "streamed"
    """One partition after the other, while the next is being written: receipts can contain the output itself."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Stream sequences ``first_sequence`` to ``last_sequence`` of one batch, as planned (a body that is cut in chunks
    belongs to the partition that holds its first chunk), which has as many ``partitions``. ``defines``: there are
    definitions in the batch, each in a separate partition; the destination's state between them is not known before.
    ``names`` are the source's names of tables when its replicator started, by OID."""

    first_sequence: int
    last_sequence: int
    partitions: int = 1
    defines: bool = False
    names: Mapping[int, TableName] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of one call of ``write``, with the part of the stream it covers.

    ``commit_lsn`` and ``committed_at`` (microseconds since 2000-01-01 UTC) are from the last transaction in it that
    commits; 0 when none does. ``changes`` counts source changes, before rules. All receipts of a batch have the same
    ``lane``; in the one of copied rows the sequences count in the snapshot stream, and ``changes`` counts rows.
    ``rules`` is the hash of the rules and routes that the batch went through, "" for none. ``cohort`` are the oids of
    tables whose changes were left out of a batch of the lane CHANGES.
    """

    first_sequence: int
    last_sequence: int
    changes: int
    commit_lsn: int
    committed_at: int
    body: bytes
    lane: Lane = Lane.CHANGES
    rules: str = ""
    cohort: frozenset[int] = frozenset()

    @property
    def copied(self) -> bool:
        """Returns whether it is for rows that a snapshot copied."""
        return self.lane is Lane.COPIED


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The catch-up state: the changes of ``tables`` (oids) up to ``sequence`` are applied, and the later ones were left
    out; ``commit_lsn`` and ``committed_at`` are from the last transaction up to there. ``borders``, by oid, are of
    tables that were left out later than others: their changes that commit before that LSN are applied, too."""

    sequence: int
    commit_lsn: int
    committed_at: int
    tables: frozenset[int]
    borders: tuple[tuple[int, int], ...] = ()

    def joined_by(self, tables: frozenset[int], border: int) -> CatchUp:
        """Returns the state with these tables; new ones were left out at ``border``."""
        borders = dict(self.borders) | dict.fromkeys(tables - self.tables, border)
        return replace(self, tables=tables, borders=tuple(sorted((oid, lsn) for oid, lsn in borders.items() if oid in tables)))

    def encode(self) -> str:
        """Encodes for a position that is stored as text."""
        borders = dict(self.borders)
        tables = (f"{oid}@{borders[oid]}" if oid in borders else f"{oid}" for oid in sorted(self.tables))
        return f"{self.sequence} {self.commit_lsn} {self.committed_at} {','.join(tables)}"

    @classmethod
    def decode(cls, text: str) -> CatchUp | None:
        """Returns None for "". Raises ValueError for what ``encode`` does not make."""
        if not text:
            return None
        sequence, commit_lsn, committed_at, tables = text.split(" ")
        parts = [table.split("@") for table in tables.split(",")]
        borders = tuple((int(part[0]), int(part[1])) for part in parts if len(part) > 1)
        found = cls(int(sequence), int(commit_lsn), int(committed_at), frozenset(int(part[0]) for part in parts), borders)
        if found.encode() != text:
            raise ValueError("tables that catch up are named twice, or out of order")
        return found


@dataclass(frozen=True, slots=True)
class Applied:
    """A worker's durable position: every message up to ``sequence`` is applied, except for the tables of ``catch_up``,
    whose changes are applied up to that place of the same stream. ``sequence`` is 0 before the first.

    ``stream_created`` identifies the stream that ``sequence`` counts in ("" before the first batch, and while a group
    that only copied has no such stream): a recreated stream counts from 1 again and must not be mistaken for the old
    one. ``snapshot_sequence`` is the same position in the snapshot stream, which is applied before the changes.
    ``rules`` is from the newest batch's receipts.
    """

    sequence: int
    commit_lsn: int
    committed_at: int
    stream_created: str
    snapshot_sequence: int = 0
    rules: str = ""
    catch_up: CatchUp | None = None

    @property
    def caught_up_sequence(self) -> int:
        """Every message up to here is applied, of all tables."""
        return self.sequence if self.catch_up is None else self.catch_up.sequence

    def last_sequence(self, *, copied: bool) -> int:
        """Returns the position in the snapshot stream, or in the stream of changes."""
        return self.snapshot_sequence if copied else self.sequence

    def sequence_in(self, lane: Lane) -> int:
        """Returns the position that batches of ``lane`` move."""
        match lane:
            case Lane.COPIED:
                return self.snapshot_sequence
            case Lane.CHANGES:
                return self.sequence
            case Lane.CATCH_UP:
                return self.caught_up_sequence
            case unreachable:
                assert_never(unreachable)

    def covers(self, receipt: Receipt) -> bool:
        """Returns whether what ``receipt`` covers is applied."""
        return receipt.last_sequence <= self.sequence_in(receipt.lane)

    def is_behind(self, other: Applied) -> bool:
        """Returns whether a worker that is at ``other`` was here before."""
        same_stream = self.stream_created in ("", other.stream_created)
        here, there = self._places, other._places
        return same_stream and here != there and all(a <= b for a, b in zip(here, there, strict=True))

    @property
    def _places(self) -> tuple[int, int, int]:
        return self.snapshot_sequence, self.sequence, self.caught_up_sequence

    def after(self, receipt: Receipt, stream_created: str) -> Applied:
        """Returns the position after the changes of ``receipt`` are applied too."""
        passed = replace(self, stream_created=stream_created, rules=receipt.rules)
        match receipt.lane:
            case Lane.COPIED:
                return replace(passed, snapshot_sequence=receipt.last_sequence)
            case Lane.CHANGES:
                return replace(_moved(passed, receipt), catch_up=self._left_behind(receipt.cohort))
            case Lane.CATCH_UP:
                return replace(passed, catch_up=self._caught_up(receipt))
            case unreachable:
                assert_never(unreachable)

    def _left_behind(self, cohort: frozenset[int]) -> CatchUp | None:
        """Returns the tables that stay here, or where they were left before, when the others move on."""
        if not cohort:
            return None
        if self.catch_up is None:
            return CatchUp(self.sequence, self.commit_lsn, self.committed_at, cohort)
        return self.catch_up.joined_by(cohort, self.commit_lsn + 1)

    def _caught_up(self, receipt: Receipt) -> CatchUp | None:
        """Returns None when the tables are where all others are: from there on they go together."""
        if self.catch_up is None or receipt.last_sequence >= self.sequence:
            return None
        return _moved(self.catch_up, receipt)

    def encode(self) -> str:
        """Encodes as text, for a sink that stores it with its data."""
        catch_up = "" if self.catch_up is None else self.catch_up.encode()
        fields = [self.sequence, self.commit_lsn, self.committed_at, self.stream_created, self.snapshot_sequence, self.rules]
        return orjson.dumps([*fields, catch_up]).decode()

    @classmethod
    def decode(cls, text: str) -> Applied:
        """Raises ValueError for what ``encode`` does not make."""
        fields = orjson.loads(text)
        if not isinstance(fields, list) or tuple(map(type, fields)) != _ENCODED_TYPES:
            raise ValueError("not a position")
        sequence, commit_lsn, committed_at, stream_created, snapshot_sequence, rules, catch_up = fields
        place = CatchUp.decode(catch_up)
        return cls(sequence, commit_lsn, committed_at, stream_created, snapshot_sequence, rules, place)


_ENCODED_TYPES = (int, int, int, str, int, str, str)


Place = TypeVar("Place", Applied, CatchUp)


def _moved(place: Place, receipt: Receipt) -> Place:
    moved = replace(place, sequence=receipt.last_sequence)
    if not receipt.commit_lsn:
        return moved
    return replace(moved, commit_lsn=receipt.commit_lsn, committed_at=receipt.committed_at)


NOTHING_APPLIED = Applied(0, 0, 0, "")


@dataclass(frozen=True, slots=True)
class MissedChanges:
    """Updates and deletes of one table that met no row in the sink. ``oid`` and ``source`` (schema and name) are the source's,
    ``place`` is where the rows go. ``since`` is when the first of the ``changes`` was applied, as RFC 3339. ``updates`` and
    ``deletes`` are those of them whose kind is known, ``positions`` are of some of the first."""

    oid: int
    source: tuple[str, str]
    place: tuple[str, str]
    changes: int
    since: str
    updates: int = 0
    deletes: int = 0
    positions: tuple[Position, ...] = ()


class DefinitionUse(enum.Enum):
    """A sink's use of the definitions that its writer gets among the changes."""

    ALTERS = "alters"
    """The destination is altered."""
    PASSES_ON = "passes on"
    """Definitions are part of the output."""
    PASSES_OVER = "passes over"


class PartitionWriter(Protocol):
    """Runs in a Spark task; picklable."""

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        """Writes ``messages`` (in commit order) and yields at least one receipt body. The caller stamps each receipt with the
        messages that were taken from ``messages`` since the receipt before; so a receipt covers whole messages, and all
        must be taken before the last receipt is yielded."""
        ...

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        """Writes rows of a snapshot, of several tables in any sequence. Batches of copied rows come before batches of
        changes, and again when a table is copied again."""
        ...


class Sink(Protocol):
    """Lives in the driver."""

    @property
    def delivery(self) -> Delivery:
        """The way of the next batch's receipts to the driver."""
        ...

    def open(self) -> Applied:
        """Connects, checks that the sink can be written, and returns the durable position."""
        ...

    def writer(self) -> PartitionWriter:
        """Returns the writer for tasks of the following batches."""
        ...

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Makes one batch durable and returns the new position (the last receipt's). ``receipts`` is never empty and
        may be consumed only once."""
        ...

    def finish_copy(self) -> None:
        """Called when all rows of a finished copy are applied: no more are expected, unless a table is copied again. A
        batch of changes implies the same, so this is called never, once or more often."""
        ...

    def close(self) -> None:
        """Frees what ``open`` took. May be called without ``open``, and after an error."""
        ...
