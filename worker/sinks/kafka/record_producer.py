"""One producer of Kafka's: it takes receipts' bodies, and has transactions when it has an id for them.

It has one request under way with each broker. With more, records may be lost in silence, in spite of idempotence: a partition
that was just made refuses the first request (its leader is not known yet) and takes the second one, because a broker accepts any
first number of a producer that it does not know; the first one, sent again, then looks like one that came twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Message, Producer, ThrottleEvent

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, PgsluiceError, TransientError
from pgsluice.worker.sinks.kafka.cluster_topics import ClusterTopics
from pgsluice.worker.sinks.kafka.kafka_client import Complaints, client_settings
from pgsluice.worker.sinks.kafka.options import KafkaSinkSettings
from pgsluice.worker.sinks.kafka.outgoing_records import decode_records

POSITION_HEADER = "pgsluice-position"
DELIVERY_DEADLINE_S = 60.0
"""Time for which brokers may accept nothing, unless they report that a quota is used up."""
TOLD_THROTTLE_S = 1.0
"""A quota that delays the worker for less is not logged."""
ABORT_DEADLINE_S = 10.0
SETTLE_INTERVAL_S = 0.001
"""Polling interval: there are no callbacks for delivered records."""
QUEUE_KIB = 64 * 1024
SMALLEST_BATCH_BYTES = 1024
"""Size of records that go to a broker together. A smaller limit is understood as one of records."""
BATCH_SHRINKING = 4
MOST_NAMED = 5
"""Topics in an error."""
_ANY_PARTITION = -1
_ORDERED_PARTITION = 0
"""Partition of records without a key, which would be spread over all otherwise."""

log = telemetry.logger(__name__)


class RecordProducer:
    """Blocking calls, of one thread. Raises TransientError when the brokers do not answer, TerminalError for an error
    that an operator must fix. It asks ``topics`` for each once. ``meet`` is called with each topic before the first
    record since ``begin`` goes there."""

    def __init__(
        self, kafka: KafkaSinkSettings, transactional_id: str, topics: ClusterTopics, meet: Callable[[str], None] | None = None
    ) -> None:
        self._complaints = Complaints(transactional_id)
        self._topics = topics
        self._meet = meet
        self._position_topic = kafka.position_topic
        self._known: set[str] = set()
        self.touched: set[str] = set()
        """Topics that records were handed over for since ``begin``."""
        record_bytes = kafka.max_record_bytes
        batch_bytes = min(record_bytes, topics.batch_bytes)
        self._failures = _Failures(self._complaints, topics, batch_bytes)
        self._quota = _Quota()
        settings = client_settings(kafka.cluster, self._complaints) | {
            "enable.idempotence": True,
            "message.timeout.ms": int(kafka.transaction_timeout_s * 1000),
            "message.max.bytes": record_bytes,
            "batch.size": batch_bytes,
            "queue.buffering.max.kbytes": max(QUEUE_KIB, 4 * record_bytes // 1024),
            "queue.buffering.max.messages": 500_000,
            "compression.type": kafka.compression,
            "linger.ms": 5,
            "max.in.flight": 1,  # see above
            "partitioner": "murmur2_random",  # as Kafka's own clients choose
            "delivery.report.only.error": True,
            "on_delivery": self._failures.note,
            "throttle_cb": self._quota.note,
        }
        if transactional_id:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": int(kafka.transaction_timeout_s * 1000)}
        with self._complaints.translated():
            self._producer = Producer(settings)

    @property
    def has_failed(self) -> bool:
        """True if it must not be used for another transaction: its numbers may have a gap."""
        return self._complaints.has_failed

    @property
    def is_fatal(self) -> bool:
        """True if the brokers accept nothing more from it. The cause must be determined."""
        return self._complaints.is_fatal

    def init(self) -> None:
        """Fences other producers of that id; their open transactions stay invisible."""
        self._until_answered(lambda: self._producer.init_transactions(DELIVERY_DEADLINE_S))

    def begin(self) -> None:
        self._failures.first = None
        self._quota.is_told = False
        self.touched.clear()
        with self._complaints.translated():
            self._producer.begin_transaction()

    def send(self, body: bytes) -> int:
        """Returns when the records of a receipt's body are handed over, not yet delivered; how many they are."""
        touched, produce, count = self.touched, self._producer.produce, 0
        for group, ordinal, key, value in decode_records(body):
            count += 1
            topic = group.topic
            if topic not in touched:
                self._touch(topic)
            if group.is_barrier:
                self._topics.check_in_order(topic)
            headers = [*group.headers, (POSITION_HEADER, b"%b%d" % (group.place, ordinal))] if group.place else []
            partition = _ORDERED_PARTITION if key is None else _ANY_PARTITION
            try:
                produce(topic, value, key, partition, headers=headers)
            except BufferError:
                self._wait_for_room(topic, key, value, partition, headers)
            except KafkaException as failure:
                raise self._failures.first or self._refusal(failure.args[0], topic) from None
        self._look()
        return count

    def _touch(self, topic: str) -> None:
        if topic not in self._known:
            self._topics.make_sure(topic)
            self._known.add(topic)
        if self._meet is not None:
            self._meet(topic)
        self.touched.add(topic)

    def send_one(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        try:
            self._producer.produce(topic, value, key, partition)
        except BufferError:
            self._wait_for_room(topic, key, value, partition, [])
        except KafkaException as failure:
            raise self._failures.first or self._refusal(failure.args[0], topic) from None

    def settle(self) -> None:
        """Returns when the brokers hold all records handed over. Does not use the library's ``flush``, which itself
        fails at a fatal error."""
        self._look()
        left, moved_at = len(self._producer), time.monotonic()
        while left:
            if self._quota.is_over(moved_at):
                raise self._unanswered()
            self._look(SETTLE_INTERVAL_S)
            before, left = left, len(self._producer)
            moved_at = time.monotonic() if left < before else moved_at
        self._complaints.forget()

    def commit(self) -> None:
        """Commits. After an error it is not known whether the transaction is committed."""
        self._look()
        self._until_answered(lambda: self._producer.commit_transaction(DELIVERY_DEADLINE_S))
        self._look()

    def abort(self) -> bool:
        """Returns whether nothing of the transaction counts and another may begin. If not, the producer is of no use
        any more.
        """
        self._failures.first = None
        try:
            self._producer.abort_transaction(ABORT_DEADLINE_S)
        except KafkaException:
            return False
        self._failures.first = None
        return True

    def discard(self) -> None:
        """Discards records that were not sent yet."""
        with suppress(KafkaException):
            self._producer.purge()

    def _look(self, timeout_s: float = 0.0) -> None:
        """Raises what became known of records that were not delivered."""
        with self._complaints.translated():
            self._producer.poll(timeout_s)
        if self._failures.first is not None:
            raise self._failures.first

    def _wait_for_room(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int, headers: list[tuple[str, bytes]]
    ) -> None:
        began_at = time.monotonic()
        while not self._quota.is_over(began_at):
            self._look(0.1)
            with self._complaints.translated(topic):
                try:
                    self._producer.produce(topic, value, key, partition, headers=headers)
                    return
                except BufferError:
                    continue
        raise self._unanswered()

    def _refusal(self, error: KafkaError, topic: str) -> PgsluiceError:
        """Returns the error to raise. A transaction that is broken, as by a topic that this user may not write, accepts
        nothing more; the library reports the cause when another one begins."""
        if error.code() == KafkaError._STATE:
            try:
                self._producer.begin_transaction()
            except KafkaException as failure:
                return self._of_transaction(failure.args[0])
        return self._complaints.of(error, topic)

    def _of_transaction(self, error: KafkaError) -> PgsluiceError:
        """Names the topics that this user may not write: the library does not name the one in a transaction."""
        refused: list[str] = []
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            with suppress(PgsluiceError):
                refused = self._topics.unwritable({*self.touched, self._position_topic})
        return self._complaints.of(error, ", topic ".join(refused[:MOST_NAMED]))

    def _until_answered(self, call: Callable[[], None]) -> None:
        """The library has a call repeated that it could not end."""
        began_at = time.monotonic()
        while True:
            try:
                call()
                self._complaints.forget()
                return
            except KafkaException as failure:
                error = failure.args[0]
                with suppress(KafkaException):  # the same one, where it is fatal
                    self._producer.poll(0)
                if not error.retriable() or error.fatal() or self._quota.is_over(began_at):
                    raise self._failures.first or self._of_transaction(error) from None

    def _unanswered(self) -> PgsluiceError:
        self._complaints.has_failed = True
        return self._complaints.cause() or TransientError(
            "Kafka does not take records", "check that the brokers run and can be reached", Cause.TARGET
        )


_CONSEQUENCES = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Errors of records that were dropped because of others."""


class _Quota:
    """Notes quotas that are used up: brokers accept nothing for a while, and answer nothing. It does not know the
    producer, as ``_Failures`` does not."""

    def __init__(self) -> None:
        self._used_up_until = 0.0
        """Time of the monotonic clock."""
        self.is_told = False
        """True if it was logged since the batch began."""

    def note(self, event: ThrottleEvent) -> None:
        self._used_up_until = max(self._used_up_until, time.monotonic() + event.throttle_time)
        if event.throttle_time >= TOLD_THROTTLE_S and not self.is_told:
            self.is_told = True
            log.warning("a quota of Kafka slows the worker down", broker=event.broker_name, throttled_s=event.throttle_time)

    def is_over(self, since: float) -> bool:
        """Returns whether nothing has moved since ``since`` for longer than the deadline."""
        return time.monotonic() > max(since, self._used_up_until) + DELIVERY_DEADLINE_S


class _Failures:
    """The first record that was not delivered. It does not know the producer, which is freed when it is no longer
    referenced."""

    def __init__(self, complaints: Complaints, topics: ClusterTopics, batch_bytes: int) -> None:
        self._complaints = complaints
        self._topics = topics
        self._batch_bytes = batch_bytes
        self.first: PgsluiceError | None = None

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is None or self.first is not None or error.code() in _CONSEQUENCES:
            return
        topic = message.topic() or ""
        self.first = self._complaints.of(error, topic)
        is_of_batch = len(message.value() or b"") < self._batch_bytes and self._batch_bytes > SMALLEST_BATCH_BYTES
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and is_of_batch:
            self._topics.batch_bytes = max(SMALLEST_BATCH_BYTES, self._batch_bytes // BATCH_SHRINKING)
            self.first = TransientError(
                f"topic {topic} takes no {self._batch_bytes} bytes of records at a time",
                f"they go in batches of {self._topics.batch_bytes} bytes; a higher max.message.bytes makes that faster",
                Cause.TARGET,
            )
