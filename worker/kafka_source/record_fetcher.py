"""Fetches ranges of many partitions over one consumer, without a consumer group.

The index names ranges of many partitions in turn, often of a few records each, and tasks of several processes share them. Those
of one partition come in order. So a partition that was asked for stays assigned, and what arrives of others meanwhile is kept:
a range a little behind the one before needs no request of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pgsluice.shared.errors import Cause, HistoryError, PgsluiceError, TransientError
from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.wire.kafka_range import KafkaRange
from pgsluice.worker.kafka_source.topic_ends import error_of
from pgsluice.worker.sinks.kafka.kafka_client import Complaints, client_settings

READ_DEADLINE_S = 60.0
POLL_S = 0.5
AT_ONCE = 500
LONGEST_SKIP = 10_000
"""Offsets between two ranges of a partition that are read and thrown away; a new assignment waits for the fetch under way."""
AHEAD_BYTES = 16 * 1024 * 1024
"""What is kept at most; beyond it the partitions that nobody waits for are given up, and fetched again."""

_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)

Records = Sequence[tuple[int, bytes]]
"""Offsets and values."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Those records of a range that are committed and have a value. ``arrived_at`` is the clock ``time.monotonic`` at a moment
    when all were there."""

    records: Records
    arrived_at: float


@dataclass(slots=True)
class _Ahead:
    """What arrived of an assigned partition and belongs to no range that was read. ``place`` is the offset behind the last such
    range."""

    place: int
    events: deque[Message] = field(default_factory=deque)
    bytes: int = 0
    arrived_at: float = 0.0

    def add(self, event: Message) -> None:
        self.events.append(event)
        self.bytes += len(event)
        self.arrived_at = time.monotonic()

    def take(self) -> None:
        self.bytes -= len(self.events.popleft())

    def leads_to(self, first: int) -> bool:
        """Whether what is there or comes next soon gets to ``first``."""
        known = max(self.place, self.events[-1].offset() or 0) if self.events else self.place
        return self.place <= first <= known + LONGEST_SKIP


class _StoppedError(Exception):
    """The client reads the partition no further."""

    def __init__(self, error: KafkaError) -> None:
        self.error = error


class RecordFetcher:
    """For one thread. Raises TransientError when the brokers do not answer."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._complaints = Complaints()
        settings = client_settings(cluster, self._complaints) | {
            "group.id": "pgsluice",  # none is joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": AHEAD_BYTES // 1024,
        }
        with self._complaints.translated():
            self._consumer = Consumer(settings)
        self._assigned: dict[tuple[str, int], _Ahead] = {}

    def fetch(self, at: KafkaRange) -> Fetched:
        """Raises HistoryError when records of the range are gone."""
        with self._complaints.translated(at.topic):
            try:
                return self._fetched(at)
            except BaseException:  # events of any partition may be lost
                self._give_up(*self._assigned)
                raise

    @property
    def kept_bytes(self) -> int:
        """Of records that came and belong to no range that was read."""
        return sum(ahead.bytes for ahead in self._assigned.values())

    def close(self) -> None:
        self._consumer.close()

    def _fetched(self, at: KafkaRange) -> Fetched:
        ahead = self._assigned.get((at.topic, at.partition))
        if ahead is not None and ahead.leads_to(at.first):
            try:
                return self._taken(at, ahead)
            except _StoppedError:  # perhaps by what lies before the range
                pass
        try:
            return self._taken(at, self._assign(at))
        except _StoppedError as stopped:
            raise self._failure(stopped.error, at) from None

    def _assign(self, at: KafkaRange) -> _Ahead:
        key = at.topic, at.partition
        if key in self._assigned:
            self._give_up(key)
        self._consumer.incremental_assign([TopicPartition(*key, at.first)])
        ahead = self._assigned[key] = _Ahead(at.first)
        return ahead

    def _give_up(self, *keys: tuple[str, int]) -> None:
        if keys:
            self._consumer.incremental_unassign([TopicPartition(*key) for key in keys])
        for key in keys:
            del self._assigned[key]

    def _taken(self, at: KafkaRange, ahead: _Ahead) -> Fetched:
        records = list(self._until_end(at, ahead))
        ahead.place = at.end
        return Fetched(records, ahead.arrived_at)

    def _until_end(self, at: KafkaRange, ahead: _Ahead) -> Iterator[tuple[int, bytes]]:
        deadline = time.monotonic() + READ_DEADLINE_S
        while True:
            while ahead.events:
                event = ahead.events[0]
                error, offset, value = event.error(), event.offset(), event.value()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise _StoppedError(error)
                assert offset is not None
                if offset >= at.end:  # it stays: an end of the partition may be the only sign of the next range's, too
                    return
                ahead.take()
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
            self._wait_for_more((at.topic, at.partition))

    def _wait_for_more(self, wanted: tuple[str, int]) -> None:
        """Returns with the first event of any partition, and with all that had come by then."""
        event = self._consumer.poll(POLL_S)
        if event is None:
            return
        for each in (event, *self._consumer.consume(AT_ONCE, 0)):
            topic, partition = each.topic(), each.partition()
            if topic is None or partition is None:
                raise self._unplaced(each)  # everything is given up then
            if (ahead := self._assigned.get((topic, partition))) is not None:
                ahead.add(each)
        others = [key for key in self._assigned if key != wanted]
        if self.kept_bytes > AHEAD_BYTES:
            self._give_up(*others)

    def _unplaced(self, event: Message) -> PgsluiceError:
        error = event.error()
        assert error is not None, "a record has a place"
        return error_of(self._complaints, error, "")

    def _failure(self, error: KafkaError, at: KafkaRange) -> PgsluiceError:
        if error.code() in _GONE:
            return HistoryError(
                f"records {at.first} to {at.end - 1} of topic {at.topic}, partition {at.partition}, are gone, and were not all "
                "applied",
                "raise the topic's retention.ms above the time that this worker may be away, and begin a new group with an "
                "empty target",
            )
        return error_of(self._complaints, error, at.topic)
