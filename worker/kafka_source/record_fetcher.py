"""Fetches ranges of partitions over one consumer, without a consumer group.

The index names ranges of many partitions in turn, often of a few records each. The consumer reads one partition at a
time and is assigned the next one, which costs some milliseconds (``FETCH_WAIT_MS``, and a request). A range that
follows the one before, or comes a little after it, costs none: what was read ahead is kept for it. Where nothing was
read ahead no partition stays assigned, because the library would ask for more all the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pgsluice.shared.errors import Cause, HistoryError, PgsluiceError, TransientError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.wire.kafka_range import KafkaRange
from pgsluice.worker.kafka_source.topic_ends import error_of
from pgsluice.worker.sinks.kafka.kafka_client import WITHOUT_GROUP, Complaints, client_settings

READ_DEADLINE_S = 60.0
"""Longest time without an event."""
POLL_S = 0.5
AT_ONCE = 500
FETCH_WAIT_MS = 5
"""Time that a broker waits for missing records. Meanwhile the client asks it for no other partition."""
FETCH_BYTES = 256 * 1024
AHEAD_BYTES = 2 * 1024 * 1024
"""Bytes that the library reads ahead; wasted when another partition is next."""
LONGEST_SKIP = 1000
"""Offsets between two ranges of a partition that are read and thrown away: that is faster than to begin there."""

T = TypeVar("T")

_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)

Records = Sequence[tuple[int, bytes]]
"""Offsets and values."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The records of a range that are committed and have a value. ``arrived_at`` is the clock ``time.monotonic`` at a
    moment when all had arrived."""

    records: Records
    arrived_at: float


@dataclass(frozen=True, slots=True)
class Measured:
    """``size`` bytes of values are in front of the offset ``end``."""

    end: int
    size: int


@dataclass(slots=True)
class _Assigned:
    """The partition that is read. ``events`` are its events after the ranges read so far; ``place`` is the offset after
    the last such range."""

    topic: str
    partition: int
    place: int
    events: deque[Message] = field(default_factory=deque)
    arrived_at: float = 0.0

    def leads_to(self, at: KafkaRange) -> bool:
        """Returns whether the events read ahead, or the next ones, lead to the range."""
        known = max(self.place, self.events[-1].offset() or 0) if self.events else self.place
        is_there = (self.topic, self.partition) == (at.topic, at.partition)
        return is_there and self.place <= at.first <= known + LONGEST_SKIP

    @property
    def is_at_end(self) -> bool:
        """Returns whether nothing after ``place`` was read ahead."""
        return not self.events or self.events[0].error() is not None


def _is_of_partition(event: Message) -> bool:
    error = event.error()
    return error is None or error.code() != WITHOUT_GROUP


class _StoppedError(Exception):
    """The client reads the partition no further."""

    def __init__(self, error: KafkaError) -> None:
        self.error = error


class RecordFetcher:
    """Use in a single thread. Raises TransientError when the brokers do not answer."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._complaints = Complaints()
        settings = client_settings(cluster, self._complaints) | {
            "group.id": "pgsluice",  # none is joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.message.max.bytes": FETCH_BYTES,
            "fetch.queue.backoff.ms": 2 * FETCH_WAIT_MS,
            "queued.max.messages.kbytes": AHEAD_BYTES // 1024,
        }
        with self._complaints.translated():
            self._consumer = Consumer(settings)
        self._assigned: _Assigned | None = None

    def fetch(self, at: KafkaRange) -> Fetched:
        """Raises HistoryError when records of the range are gone."""
        return self._read(at, lambda assigned: self._fetched(at, assigned))

    def measure(self, at: KafkaRange, most_bytes: int) -> Measured:
        """Measures the records that ``fetch`` returns, up to the first with which they have ``most_bytes``, or all.
        None is kept. Raises as ``fetch``."""
        return self._read(at, lambda assigned: self._measured(at, assigned, most_bytes))

    def _read(self, at: KafkaRange, use: Callable[[_Assigned], T]) -> T:
        with self._complaints.translated(at.topic):
            assigned, self._assigned = self._assigned, None  # the place is unknown until the range is read to its end
            try:
                return self._read_on(at, assigned, use)
            finally:
                if self._assigned is None:
                    self._consumer.unassign()

    def _read_on(self, at: KafkaRange, assigned: _Assigned | None, use: Callable[[_Assigned], T]) -> T:
        if assigned is not None and assigned.leads_to(at):
            try:
                return use(assigned)
            except _StoppedError:  # perhaps by what lies before the range
                pass
        self._consumer.assign([TopicPartition(at.topic, at.partition, at.first)])
        try:
            return use(_Assigned(at.topic, at.partition, at.first))
        except _StoppedError as stopped:
            raise self._failure(stopped.error, at) from None

    def rest(self) -> None:
        """Forgets what was read ahead: the library asks the brokers for nothing."""
        self._assigned = None
        self._consumer.unassign()

    @property
    def is_resting(self) -> bool:
        """Returns whether the library asks the brokers for nothing."""
        return not self._consumer.assignment()

    def close(self) -> None:
        self._consumer.close()

    def _fetched(self, at: KafkaRange, assigned: _Assigned) -> Fetched:
        records = list(self._until_end(at, assigned))
        self._end(assigned, at.end)
        return Fetched(records, assigned.arrived_at)

    def _measured(self, at: KafkaRange, assigned: _Assigned, most_bytes: int) -> Measured:
        end, size = at.end, 0
        for offset, value in self._until_end(at, assigned):
            size += len(value)
            if size >= most_bytes:
                end = offset + 1
                break
        self._end(assigned, end)
        return Measured(end, size)

    def _end(self, assigned: _Assigned, place: int) -> None:
        """Notes that all in front of ``place`` is read."""
        self._complaints.forget()
        assigned.place = place
        if not assigned.events:
            self._has_come(assigned, 0)
        if not assigned.is_at_end:
            self._assigned = assigned

    def _until_end(self, at: KafkaRange, assigned: _Assigned) -> Iterator[tuple[int, bytes]]:
        deadline = time.monotonic() + READ_DEADLINE_S
        while True:
            while assigned.events:
                event = assigned.events[0]
                error, offset, value = event.error(), event.offset(), event.value()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise _StoppedError(error)
                assert offset is not None
                if offset >= at.end:  # of a range after this one, or the partition's end: it stays
                    return
                assigned.events.popleft()
                if error is None and offset >= at.first and value is not None:
                    yield offset, value
                if error is None and offset == at.end - 1:
                    return
            if time.monotonic() > deadline:
                raise self._complaints.cause() or TransientError(
                    f"records of topic {at.topic}, partition {at.partition}, do not arrive",
                    "check that the brokers run and can be reached",
                    Cause.SOURCE,
                )
            if self._has_come(assigned, POLL_S):
                deadline = time.monotonic() + READ_DEADLINE_S

    def _has_come(self, assigned: _Assigned, timeout_s: float) -> bool:
        """Waits for a single event only, and adds all that had come by then."""
        event = self._consumer.poll(timeout_s)
        if event is None:
            return False
        assigned.events += filter(_is_of_partition, (event, *self._consumer.consume(AT_ONCE, 0)))
        assigned.arrived_at = time.monotonic()
        return True

    def _failure(self, error: KafkaError, at: KafkaRange) -> PgsluiceError:
        if error.code() in _GONE:
            return HistoryError(
                f"records {at.first} to {at.end - 1} of topic {at.topic}, partition {at.partition}, are gone, and were not all "
                "applied",
                "raise the topic's retention.ms above the time that this worker can be down, and begin a new group with an "
                "empty target",
            )
        return error_of(self._complaints, error, at.topic)
