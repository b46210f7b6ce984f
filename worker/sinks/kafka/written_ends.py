"""The ends of topics when a position was written: one that ends sooner now has lost records.

The position is in a separate topic. A cluster that was restored, a partition whose leader was elected uncleanly, and a
topic that was deleted have forgotten records that are delivered by the position. So each position names the end of
every topic that the worker has written to, as the brokers report it, and the worker compares them at each opening.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TerminalError

MOST_BYTES = 256 * 1024
"""The most bytes of names and numbers in a position."""
_BYTES_OF_NUMBER = 12
_BYTES_OF_TOPIC = 8  # quotes, brackets and commas

Ends = tuple[int, ...]
"""The offset that comes next, by partition."""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenEnds:
    """The ends by topic; the most recently written topics come last."""

    by_topic: Mapping[str, Ends] = field(default_factory=dict)

    @classmethod
    def decode(cls, content: Any) -> WrittenEnds:
        """``content`` is ``by_topic`` as JSON gives it. Raises AttributeError, TypeError or ValueError for anything else."""
        return cls({str(topic): tuple(int(end) for end in ends) for topic, ends in content.items()})

    def after(self, found: Mapping[str, Ends], most_bytes: int = MOST_BYTES) -> WrittenEnds:
        """``found`` are the topics that were written to since. Logs a warning for each whose partitions have become more. Leaves
        topics out that were written to the longest ago, where all need more than ``most_bytes``."""
        for topic, ends in found.items():
            before = len(self.by_topic.get(topic, ends))
            if len(ends) > before:
                log.warning(
                    "a topic has more partitions than before: changes of a row from here on may be in another partition than"
                    " its earlier ones, and readers may take them in another order",
                    topic=topic,
                    partitions=len(ends),
                    before=before,
                    offsets=",".join(map(str, ends)),
                )
        kept = {topic: ends for topic, ends in self.by_topic.items() if topic not in found} | dict(found)
        size = sum(map(_bytes_of, kept.items()))
        for entry in list(kept.items()):
            if size <= most_bytes:
                break
            del kept[entry[0]]
            size -= _bytes_of(entry)
        return WrittenEnds(kept)

    def of(self, topics: Iterable[str]) -> WrittenEnds:
        """Returns the ends of ``topics`` alone."""
        return WrittenEnds({topic: self.by_topic[topic] for topic in topics})

    def check(self, now: Mapping[str, Ends], worker: str) -> None:
        """``now`` are the ends of those topics that there are. Raises TerminalError when one has lost records."""
        for topic, partition, found, end in self.losses(now):
            raise TerminalError(
                f"partition {partition} of topic {topic} ends at offset {found}, and worker '{worker}' had written to it"
                f" up to {end}: the topic was created again, or put back to an earlier state, and has lost records",
                "restore the topic; or, if its readers can do without those records, run 'pgsluice forget --worker"
                f" {worker.rpartition('/')[2]}' and start the worker with another --name, which starts over",
            )

    def losses(self, now: Mapping[str, Ends]) -> Iterator[tuple[str, int, int, int]]:
        """Yields topic, partition, where it ends ``now`` and where it ended, of each that ends sooner."""
        for topic, ends in self.by_topic.items():
            here = now.get(topic, ())
            for partition, end in enumerate(ends):
                found = here[partition] if partition < len(here) else 0
                if found < end:
                    yield topic, partition, found, end


def _bytes_of(entry: tuple[str, Ends]) -> int:
    topic, ends = entry
    return len(topic.encode()) + _BYTES_OF_TOPIC + _BYTES_OF_NUMBER * len(ends)
