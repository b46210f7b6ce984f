"""A group's change stream for readers that only read.

It knows where to begin, how far to read at a time, and whether this is still the stream that was read before.

It reads messages from the stream and the replicator's records from the state bucket, and writes nothing anywhere. The
stream knows nothing of such readers, so it keeps nothing for them: what every worker has applied may be removed before
they have read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, assert_never

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.broker.streams import StreamState
from pgsluice.shared.errors import HistoryError, MissingMessagesError, StreamBehindError, TerminalError, UsageError
from pgsluice.shared.wire.position import Anchor
from pgsluice.shared.wire.table import Table, TablePattern
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.change_reader import ChangeReader, Mark, publisher_prefix
from pgsluice.worker.batches.planning import PARTITION_BYTES, BatchLimit, plan_end, tile
from pgsluice.worker.data_source.read_options import (
    FromBeginning,
    FromSequence,
    FromTime,
    ReadSettings,
    UntilEnd,
    UntilSequence,
    UntilTime,
)

DISORDER_US = 10_000_000
"""Commit times of transactions that commit at the same moment are not quite in commit order; clocks are set, too."""

_ONE_TRANSACTION = BatchLimit(messages=1, bytes=0)
_READ_AGAIN = "start the query with a new checkpointLocation"


@dataclass(frozen=True, slots=True)
class FeedOffset:
    """Everything up to message ``sequence`` of the stream that ``stream`` identifies. ``anchor`` is the last change
    read's, None before the first. ``since``: transactions that committed before that time are left out, 0 for none."""

    stream: str
    sequence: int
    anchor: Anchor | None = None
    since: int = 0

    def encode(self) -> dict[str, Any]:
        """Encodes the offset as JSON for Spark; ``decode`` is the inverse, and ignores unknown fields."""
        anchor = None if self.anchor is None else str(self.anchor)
        return {"stream": self.stream, "sequence": self.sequence, "anchor": anchor, "since": self.since}

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> FeedOffset:
        try:
            anchor = content["anchor"]
            parsed = None if anchor is None else Anchor.parse(anchor)
            return cls(content["stream"], int(content["sequence"]), parsed, int(content["since"]))
        except (KeyError, TypeError, ValueError):
            raise TerminalError("the checkpoint is not one of the format pgsluice", "give the query its own one") from None


@dataclass(frozen=True, slots=True)
class FeedRange:
    """One task's part: messages ``first_sequence`` to ``last_sequence``. The first of them follows the change at
    ``after``, where that is known. ``is_first``: of its batch, so that a body without its begin in it began in messages
    that are gone. ``since`` is as in FeedOffset, ``until`` the last commit time; ``id_prefix`` as in ChangeReader. A
    transaction that commits before the LSN ``copied_before`` is left out. Picklable."""

    first_sequence: int
    last_sequence: int
    is_first: bool
    after: Anchor | None
    since: int
    id_prefix: str
    until: int | None = None
    copied_before: int = 0


class FeedStream:
    """Blocking calls; every one raises TransientError when NATS does not answer, and UsageError when it has no such group."""

    def __init__(self, connection: BrokerConnection, options: ReadSettings) -> None:
        self._connection = connection
        self._options = options
        self._changes = ChangeReader(connection)
        self._marks: dict[int, Mark] = {}

    def table(self) -> Table:
        """Returns the one that the option ``table`` names, as the group publishes it now."""
        pattern = self._options.table
        assert pattern is not None
        self.state()
        published = self._published()
        found = [table for table in published if pattern.matches(table.schema, table.name)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(sorted(table.qualified_name for table in found))
            raise UsageError(f"several tables are called '{pattern.text}': {names}", "write the schema too")
        raise self._unknown(pattern, published)

    def check_tables(self) -> None:
        """Raises UsageError when the option ``tables`` names a table that the group does not publish. A pattern may match tables
        that come later, or that left the group."""
        self.state()
        published = self._published()
        for pattern in self._options.tables:
            if pattern.is_name and not any(pattern.matches(table.schema, table.name) for table in published):
                raise self._unknown(pattern, published)

    def _published(self) -> list[Table]:
        return self._connection.ask(lambda client: load_tables(StateBucket(client, self._connection.names))) or []

    def _unknown(self, pattern: TablePattern, published: Sequence[Table]) -> UsageError:
        close = get_close_matches(pattern.text, [name for table in published for name in (table.name, table.qualified_name)], n=1)
        remedy = f"did you mean '{close[0]}'?" if close else "'pgsluice status' lists its tables"
        if self._options.tables:
            remedy += f" (of a table that left the group, a pattern like '{pattern.text}*' reads the existing messages)"
        return UsageError(f"group '{self._options.group}' publishes no table '{pattern.text}'", remedy)

    def state(self) -> StreamState:
        state = self._changes.state()
        if state is None:
            raise UsageError(
                f"there is no stream of changes of group '{self._options.group}' at this NATS",
                "check the options group and nats-url, or start the group's replicator first",
            )
        return state

    def check_whole_since(self, lsn: int) -> None:
        """Raises MissingMessagesError unless the stream still holds every transaction that commits at that LSN or later."""
        state = self.state()
        if state.first_sequence > 1:
            after = self._changes.after(state.first_sequence) if state.messages else None
            if after is None or after.position.commit_lsn >= lsn:
                raise MissingMessagesError(
                    "changes that came since the table was copied were removed from the stream",
                    "have it copied again ('pgsluice tables resync'), and keep messages longer with 'retention'",
                    state.first_sequence,
                )

    def start(self) -> FeedOffset:
        """Returns the offset of the option ``from``; no transaction is open there."""
        state = self.state()
        match self._options.begin:
            case FromBeginning():
                return self._offset_before(state, state.first_sequence)
            case FromSequence(sequence):
                if sequence > state.last_sequence + 1:
                    raise _not_yet("from", sequence, state)
                return self._offset_before(state, sequence)
            case FromTime(committed_at):
                sequence = self._first_committed_after(state, committed_at - DISORDER_US)
                return FeedOffset(state.created, self._offset_before(state, sequence).sequence, since=committed_at)
            case unreachable:
                assert_never(unreachable)

    def end(self) -> int:
        """Returns the last sequence that the option ``until`` allows; no transaction is open at its end."""
        state = self.state()
        match self._options.until:
            case UntilEnd():
                return self.newest_settled(state)
            case UntilSequence(sequence):
                if sequence > state.last_sequence:
                    raise _not_yet("until", sequence, state)
                return self._mark(sequence).settled
            case UntilTime(committed_at):
                past = self._first_committed_after(state, committed_at + DISORDER_US)
                return self.newest_settled(state) if past > state.last_sequence else self._settled_at(past, state)
            case unreachable:
                assert_never(unreachable)

    def _settled_at(self, sequence: int, state: StreamState) -> int:
        """Returns the first place at or after message ``sequence`` where no transaction is open, else the newest one."""
        first, newest = self._mark(sequence), self._mark(state.last_sequence)
        if newest.settled < sequence:
            return newest.settled
        return plan_end(sequence - 1, first.bytes_before, newest, _ONE_TRANSACTION, self._mark)

    def newest_settled(self, state: StreamState) -> int:
        """Returns the newest message at whose end no transaction is open; 0 in a stream that holds none."""
        return self._mark(state.last_sequence).settled if state.messages else 0

    def next_offset(self, start: FeedOffset, limit: BatchLimit, target: int | None) -> FeedOffset:
        """Returns the end of a batch that begins at ``start``, at most message ``target``; ``start`` itself when no
        transaction is complete yet. Raises MissingMessagesError, unless the option ``fail-on-data-loss`` is off, when
        the first message is gone."""
        state = self.state()
        first = self._check_goes_on(start, state)
        last = state.last_sequence if target is None else min(target, state.last_sequence)
        if last < first:
            return start
        end = plan_end(first - 1, self._mark(first).bytes_before, self._mark(last), limit, self._mark)
        if end <= start.sequence:
            return start
        anchor = self._mark(end).anchor
        is_past = anchor is None or anchor.committed_at >= start.since + DISORDER_US
        return FeedOffset(start.stream, end, anchor, 0 if is_past else start.since)

    def ranges(self, start: FeedOffset, end: int, parallelism: int) -> list[FeedRange]:
        """Tiles what is after ``start`` up to message ``end``. Raises as ``next_offset``."""
        first = self._check_goes_on(start, self.state())
        if first > end:
            return []
        total_bytes = self._mark(end).bytes_through - self._mark(first).bytes_before
        names = self._connection.names
        prefix = self._connection.ask(lambda client: publisher_prefix(StateBucket(client, names), names))
        # a single kind: the others name a message as the end
        until = self._options.until.committed_at if isinstance(self._options.until, UntilTime) else None
        tiles = tile(first - 1, end, total_bytes, parallelism, PARTITION_BYTES)
        anchors = {start.sequence + 1: start.anchor}
        return [FeedRange(low, high, low == first, anchors.get(low), start.since, prefix, until) for low, high in tiles]

    def forget_before(self, sequence: int) -> None:
        """Drops marks of earlier messages."""
        self._marks = {kept: mark for kept, mark in self._marks.items() if kept >= sequence}

    def _check_goes_on(self, start: FeedOffset, state: StreamState) -> int:
        """Returns the first message to read after ``start``."""
        if start.stream != state.created:
            raise HistoryError(
                f"the stream of group '{self._options.group}' was created again since this query read it", _READ_AGAIN
            )
        if start.sequence > state.last_sequence:
            raise StreamBehindError(
                f"the stream ends at message {state.last_sequence}, but {start.sequence} was read: it lost its newest messages, "
                "which the replicator may be publishing again",
                f"start the query again later, or {_READ_AGAIN}",
            )
        if start.sequence + 1 >= state.first_sequence:
            return start.sequence + 1
        if self._options.fails_on_data_loss:
            raise missing_error(start.sequence + 1, state.first_sequence)
        return self._first_readable(state)

    def _offset_before(self, state: StreamState, sequence: int) -> FeedOffset:
        """Returns the newest place before message ``sequence`` where no transaction is open."""
        if sequence < state.first_sequence:
            if self._options.fails_on_data_loss:
                raise missing_error(sequence, state.first_sequence)
            sequence = state.first_sequence
        if sequence > state.first_sequence:
            before = self._mark(sequence - 1)
            return FeedOffset(state.created, before.settled, before.anchor if before.settled == before.sequence else None)
        return FeedOffset(state.created, self._first_readable(state) - 1)

    def _first_readable(self, state: StreamState) -> int:
        """Returns the stream's first message, or that in which a transaction ends whose beginning was removed by hand."""
        first = state.first_sequence
        if not state.messages or self._mark(first).begins:
            return first
        return max(
            first,
            plan_end(first - 1, self._mark(first).bytes_before, self._mark(state.last_sequence), _ONE_TRANSACTION, self._mark),
        )

    def _first_committed_after(self, state: StreamState, committed_at: int) -> int:
        """Returns the first message whose last change committed at that time or later; one past the newest without any."""
        low, high = state.first_sequence, state.last_sequence + 1
        while low < high:
            middle = (low + high) // 2
            anchor = self._mark(middle).anchor
            if anchor is None:
                raise UsageError(
                    f"message {middle} has no time: an earlier version of pgsluice published it", "give a sequence as 'from'"
                )
            if anchor.committed_at >= committed_at:
                high = middle
            else:
                low = middle + 1
        return low

    def _mark(self, sequence: int) -> Mark:
        mark = self._marks.get(sequence)
        if mark is None:
            mark = self._changes.mark(sequence) or Mark(sequence, 0, 0, 0)  # removed meanwhile: reading it will raise
            self._marks[sequence] = mark
        return mark


def _not_yet(option: str, sequence: int, state: StreamState) -> UsageError:
    fact = f"there is no message {sequence} yet: the stream ends at {state.last_sequence}"
    return UsageError(fact, f"give an earlier '{option}'")


def missing_error(first: int, next_sequence: int) -> MissingMessagesError:
    """Returns the error that the messages from ``first`` to the one before ``next_sequence`` are gone."""
    return MissingMessagesError(
        f"messages {first} to {next_sequence - 1} of the stream were removed before this query read them",
        f"{_READ_AGAIN} and from=beginning (or from={next_sequence}), or set fail-on-data-loss to false to continue without them",
        next_sequence,
    )


def check_follows(sequence: int, after: Anchor | None, before: Anchor | None) -> None:
    """Raises HistoryError when the message at ``sequence`` names another change before it than the one that was read. Messages of
    earlier versions name none."""
    if after is not None and before is not None and after != before:
        raise HistoryError(
            f"message {sequence} follows the change at {after.position}, but the messages before it end at {before.position}: "
            "the stream was replaced or lost messages",
            _READ_AGAIN,
        )
