"""The Kafka sink's side in the driver: hands on the encoded records of tasks, and the position with them.

Tasks have no producers: a Kafka transaction is one producer's, so whole source transactions, cut over tasks, can only
become visible at once when one producer sends them. Records of a batch, which ends where no source transaction is open,
are one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import SECONDS, Histogram, Sample
from pgsluice.worker.sinks.kafka.broker_access import check_brokers
from pgsluice.worker.sinks.kafka.change_records import ChangeRecordWriter
from pgsluice.worker.sinks.kafka.deliveries_in_transactions import TransactionalDelivery
from pgsluice.worker.sinks.kafka.options import CHANGES, KafkaSinkSettings
from pgsluice.worker.sinks.kafka.plain_deliveries import PlainDelivery
from pgsluice.worker.sinks.kafka.record_keys import RecordKeys
from pgsluice.worker.sinks.kafka.topic_pattern import KeyPattern, TopicPattern
from pgsluice.worker.sinks.kafka.writer import RecordWriter
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, DefinitionUse, Delivery, PartitionWriter, Receipt

log = telemetry.logger(__name__)


class KafkaSink:
    """Raises UsageError for settings that cannot be meant."""

    delivery = Delivery.STREAMED
    keeps_catch_up = True

    def __init__(self, settings: WorkerSettings, kafka: KafkaSinkSettings) -> None:
        self._kafka = kafka
        form = replace(LineEncoding.of(kafka.lines, settings.group), transactions=False)
        self.definitions = form.definitions
        keys = RecordKeys(KeyPattern.parse(kafka.key), form)
        self._topics = TopicPattern.parse(kafka.topic)
        lines = RecordWriter(form, self._topics, keys, kafka.max_record_bytes, kafka.tombstones, kafka.headers)
        self._writer: PartitionWriter = lines
        if kafka.format == CHANGES:
            self._writer, self.definitions = ChangeRecordWriter(lines), DefinitionUse.PASSES_OVER
        self._outlet: TransactionalDelivery | PlainDelivery = (
            TransactionalDelivery(kafka, settings.group, settings.name) if kafka.transactions else PlainDelivery(kafka, settings)
        )
        self._applied = NOTHING_APPLIED
        self._seconds = Histogram(SECONDS)
        self._committed = self._given_up = self._records = 0
        """Batches that were, and the records of the committed ones."""

    def open(self) -> Applied:
        check_brokers(self._kafka.cluster.brokers, self._kafka.cluster.allow_hosts)
        if not self._kafka.transactions:
            log.warning("kafka-transactions is false: after a crash records can come twice")
        self._applied = self._outlet.open()
        return self._applied

    def place_names(self) -> PlaceNames:
        return self._topics.place_names(self._kafka.position_topic)

    def renumber(self, applied: Applied) -> None:
        if isinstance(self._outlet, PlainDelivery):
            self._outlet.renumber(applied)
        else:
            self._outlet.store(applied)
        self._applied = applied

    def writer(self) -> PartitionWriter:
        return self._writer

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        began_at, records = time.monotonic(), 0
        try:
            self._applied = self._outlet.begin() or self._applied
            applied = self._applied
            for receipt in receipts:
                if not self._applied.covers(receipt):
                    records += self._outlet.send(receipt.body)
                applied = applied.after(receipt, stream_created)
            self._outlet.finish(applied)
        except BaseException as error:
            self._given_up += 1
            self._outlet.abort(error)
            raise
        self._applied = applied
        self._note(time.monotonic() - began_at, records)
        return applied

    def collect(self) -> list[Sample]:
        """Returns the samples since the sink was made."""
        return [
            metrics.KAFKA_TRANSACTION_SECONDS.of(self._seconds.read()),
            metrics.KAFKA_TRANSACTIONS.at(self._committed, "committed"),
            metrics.KAFKA_TRANSACTIONS.at(self._given_up, "given_up"),
            metrics.KAFKA_RECORDS.at(self._records),
        ]

    def finish_copy(self) -> None:
        """Does nothing: a row is delivered when its batch is committed."""

    def close(self) -> None:
        self._outlet.close()

    def _note(self, seconds: float, records: int) -> None:
        self._seconds.observe(seconds)
        self._committed += 1
        self._records += records
