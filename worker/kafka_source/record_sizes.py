"""Measures the bytes of a range's records. Kafka does not report them, so they are read if there are many.

Without it a batch of large records would need many times its configured memory. A few records are assumed to be like
the newest ones of their topic that were read, for a short while: where few come at a time, most are not read for this.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.wire.kafka_range import KafkaRange
from pgsluice.worker.kafka_source.record_fetcher import Measured, RecordFetcher

FEW_RECORDS = 20
LONGEST_USE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """``mean_bytes`` is of one record."""

    mean_bytes: int
    read_at: float


class RecordSizes:
    """Use in a single thread. Raises TransientError when the brokers do not answer, HistoryError when records are gone."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._fetcher = RecordFetcher(cluster)
        self._samples: dict[str, _Sample] = {}

    def measure(self, at: KafkaRange, most_bytes: int) -> Measured:
        """Measures the records from the range's beginning up to the one with which they have ``most_bytes``, or all,
        and at least one byte."""
        sample = self._samples.get(at.topic)
        if sample is not None and at.records <= FEW_RECORDS and time.monotonic() - sample.read_at < LONGEST_USE_S:
            records = min(at.records, 1 + most_bytes // sample.mean_bytes)
            return Measured(at.first + records, records * sample.mean_bytes)
        found = self._fetcher.measure(at, most_bytes)
        if found.size:
            self._samples[at.topic] = _Sample(max(1, found.size // (found.end - at.first)), time.monotonic())
        return Measured(found.end, max(1, found.size))

    def rest(self) -> None:
        """Requests nothing from brokers until the next call."""
        self._fetcher.rest()
