"""How many bytes the records of a topic hold, about: Kafka does not tell it, so a few of them are read.

What is read of a topic holds for the ranges that follow, until there were some or a while has passed. Without it a batch of large
records would need many times the memory that people gave to it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pgsluice.shared.kafka.kafka_settings import KafkaSettings
from pgsluice.shared.wire.kafka_range import KafkaRange
from pgsluice.worker.kafka_source.record_fetcher import RecordFetcher

USUAL_BYTES = 1024
"""Of a record, as long as none was seen."""
SAMPLE_RECORDS = 20
RANGES_PER_SAMPLE = 8
LONGEST_USE_S = 1.0


@dataclass(slots=True)
class _Sample:
    """``mean_bytes`` is of one record."""

    mean_bytes: int
    read_at: float
    ranges: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.ranges >= RANGES_PER_SAMPLE or time.monotonic() - self.read_at > LONGEST_USE_S


class RecordSizes:
    """For one thread."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._fetcher = RecordFetcher(cluster)
        self._samples: dict[str, _Sample] = {}

    def of(self, at: KafkaRange) -> int:
        """Bytes of a record of the range that is next, in the mean. Raises TransientError when the brokers do not answer,
        HistoryError when its records are gone."""
        sample = self._samples.get(at.topic)
        if sample is None or sample.is_used_up:
            before = USUAL_BYTES if sample is None else sample.mean_bytes
            sample = self._samples[at.topic] = _Sample(self._read(at, before), time.monotonic())
        sample.ranges += 1
        return sample.mean_bytes

    def _read(self, at: KafkaRange, before: int) -> int:
        """``before`` where the first offsets of the range have no record: what was given up, and markers."""
        first = replace(at, end=min(at.end, at.first + SAMPLE_RECORDS))
        sizes = [len(value) for _, value in self._fetcher.fetch(first).records]
        self._fetcher.rest()
        return max(1, sum(sizes) // len(sizes)) if sizes else before
