"""Delivery exactly once: a batch and the position after it are one transaction of Kafka's.

Of the processes that run one worker only the newest can produce, because all of them use one transactional id. It
registers in the topic of positions as the writer. A process that is refused reads that: if the writer is another one,
it ends; if it is this process itself, the brokers only timed out its transaction, and it takes a new producer.
"""

from __future__ import annotations

import time
import uuid

from pgsluice.shared.errors import Cause, SinkBehindError, TerminalError, TransientError
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.position_topic import PARTITION, PositionEntry, PositionTopic
from pgsluice.worker.sinks.kafka.record_producer import RecordProducer
from pgsluice.worker.sinks.kafka.written_ends import MOST_BYTES, WrittenEnds
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied


class TransactionalDelivery:
    """Blocking calls, of one thread. After any error ``abort`` comes, then ``begin`` again."""

    def __init__(self, kafka: KafkaSinkSettings, group: str, worker: str) -> None:
        self._kafka = kafka
        self._worker = f"{group}/{worker}"
        self._id = f"pgsluice.{group}.{worker}"
        self._writer = uuid.uuid4().hex
        self._topics: ClusterTopics | None = None
        self._producer: RecordProducer | None = None
        self._positions: PositionTopic | None = None
        self._is_open = False
        """A transaction is."""
        self._began_at = 0.0
        """The newest one."""
        self._ends = WrittenEnds()
        self._newest: frozenset[str] = frozenset()
        """The topics of ``_ends`` that the newest batch with records went to."""
        self._applied = NOTHING_APPLIED
        """The position that the brokers confirmed to this process."""

    def open(self) -> Applied:
        """Takes the worker over: the position that counts."""
        self._topics = ClusterTopics(self._kafka)
        self._positions = PositionTopic(self._kafka, self._topics, self._worker)
        self._positions.ensure()
        self._new_producer()
        entry = self._positions.read()
        applied = NOTHING_APPLIED if entry is None else self._reached(entry)
        self.store(applied)
        return applied

    def begin(self) -> Applied | None:
        """Begins a transaction; returns the position where that had to be looked up again. Raises TerminalError when another
        process has taken over, or topics have lost records. They are looked at before anything is sent: brokers that know this
        producer no more may take its next records as they come."""
        assert self._topics is not None, "open comes first"
        self._topics.judge_brokers()
        if self._producer is not None and self._has_lost(self._newest):
            self._drop()
        found = self._taken_again() if self._producer is None else None
        self._began_at = time.monotonic()
        self._current.begin()
        self._is_open = True
        return found

    def send(self, body: bytes) -> int:
        """Sends the records of a body; returns their number."""
        return self._current.send(body)

    def finish(self, applied: Applied) -> None:
        """Makes the batch durable before it returns."""
        assert self._positions is not None, "open comes first"
        assert self._topics is not None, "open comes first"
        if self._current.touched:
            self._current.settle()
            most_bytes = min(MOST_BYTES, self._kafka.max_record_bytes // 2)  # the position is a record too
            self._ends = self._ends.after(self._topics.ends(self._current.touched), most_bytes)
            self._newest = frozenset(self._current.touched & self._ends.by_topic.keys())
        entry = PositionEntry(self._worker, self._writer, applied, self._ends)
        self._current.send_one(self._positions.name, PARTITION, self._positions.key, entry.encode())
        self._current.commit()
        self._is_open = False
        self._applied = applied

    def store(self, applied: Applied) -> None:
        """Stores a position without changes."""
        try:
            self.begin()
            self.finish(applied)
        except BaseException as error:
            self.abort(error)
            raise

    def abort(self, error: BaseException) -> None:
        """Aborts: the transaction's records must stay invisible. Raises TerminalError when another process has taken
        over, or a topic has lost records, for example by its deletion."""
        producer, is_open = self._producer, self._is_open
        self._is_open = False
        if producer is None:
            return
        is_clean = not is_open or (not producer.is_fatal and producer.abort())
        if producer.has_failed or not is_clean:
            self._drop()
            if producer.is_fatal and isinstance(error, Exception):
                self._check_writer()
                self._check_duration()
        if isinstance(error, TerminalError):
            self._check_ends(self._ends)

    def close(self) -> None:
        if self._producer is not None and self._is_open:
            self._producer.abort()
        self._drop()
        self._topics = self._positions = None

    @property
    def _current(self) -> RecordProducer:
        assert self._producer is not None, "open comes first"
        return self._producer

    def _new_producer(self) -> None:
        assert self._topics is not None, "open comes first"
        producer = RecordProducer(self._kafka, self._id, self._topics, self._meet)
        producer.init()
        self._producer = producer

    def _has_lost(self, topics: frozenset[str]) -> bool:
        assert self._topics is not None, "open comes first"
        return any(self._ends.of(topics).losses(self._topics.ends(topics)))

    def _meet(self, topic: str) -> None:
        """Checks a topic before the first record of a batch goes there. Raises TerminalError when it has lost records."""
        assert self._topics is not None, "open comes first"
        if topic in self._ends.by_topic and topic not in self._newest:
            self._ends.of([topic]).check(self._topics.ends([topic]), self._worker)

    def _taken_again(self) -> Applied:
        """Returns the position. No producer is kept until it is known: the last commit may have succeeded or not. The
        first read does not wait for transactions that this process itself left open, which the new producer ends."""
        self._check_writer(passes_open=True)
        self._new_producer()
        try:
            self._applied = self._check_writer()
            return self._applied
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        self._is_open = False
        if producer is not None:
            producer.discard()

    def _check_duration(self) -> None:
        """Raises TransientError when the transaction lasted longer than the brokers allow."""
        if time.monotonic() - self._began_at >= self._kafka.transaction_timeout_s:
            raise TransientError(
                f"the brokers ended a transaction that lasted longer than kafka-transaction-timeout "
                f"({self._kafka.transaction_timeout_s:g} s)",
                "raise it, or lower batch-bytes and batch-size",
                Cause.TARGET,
            )

    def _check_writer(self, *, passes_open: bool = False) -> Applied:
        """Returns the position. Raises TerminalError when another process is the writer, SinkBehindError when the position is
        before what this process delivered: it was put back."""
        assert self._positions is not None, "open comes first"
        entry = self._positions.read(passes_open=passes_open)
        applied = NOTHING_APPLIED if entry is None else self._reached(entry)
        if applied.is_behind(self._applied):
            raise SinkBehindError(
                f"topic {self._positions.name} has lost positions: worker '{self._worker}' is at message "
                f"{applied.sequence} there, before the position that this worker delivered ({self._applied.sequence})",
                "after an unclean election or a restore, start again: the worker continues from there, and its readers can get "
                "changes again",
            )
        if entry is not None and entry.writer == self._writer:
            return applied
        raise TerminalError(
            f"another process moved the position of worker '{self._worker}'",
            "give each worker of a group its own --name; when started again, the worker continues from there",
        )

    def _reached(self, entry: PositionEntry) -> Applied:
        """Returns the position. Raises TerminalError when a topic has lost what it counts."""
        self._check_ends(entry.ends)
        self._ends = entry.ends
        self._newest &= entry.ends.by_topic.keys()
        return entry.applied

    def _check_ends(self, ends: WrittenEnds) -> None:
        assert self._topics is not None, "open comes first"
        ends.check(self._topics.ends(ends.by_topic.keys() & self._topics.names()), self._worker)
