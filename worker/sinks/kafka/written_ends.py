"""Where topics ended when a position was written: one that ends sooner now has lost records.

The position is in a topic of its own. A cluster that was restored, a partition whose leader was elected uncleanly, and a topic
that was deleted have forgotten records that the position counts as delivered. So each position names the end of every topic that
the worker has written to, as the brokers tell it, and the worker compares them at each opening.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pgsluice.shared import telemetry
from pgsluice.shared.errors import TerminalError

MOST_BYTES = 256 * 1024
"""Of names and numbers in a position. Topics that were written to the longest ago are left out beyond that."""
_BYTES_OF_NUMBER = 12

Ends = tuple[int, ...]
"""The offset that comes next, by partition."""

log = telemetry.logger(__name__)


class TopicEnds(Mapping[str, Ends]):
    """By topic; those that were written to last come last."""

    def __init__(self, ends: Mapping[str, Sequence[int]] | None = None) -> None:
        self._ends = {topic: tuple(each) for topic, each in (ends or {}).items()}

    @classmethod
    def decode(cls, content: Any) -> TopicEnds:
        """Raises TypeError or AttributeError for what ``encode`` does not make."""
        return cls({str(topic): [int(end) for end in ends] for topic, ends in content.items()})

    def encode(self) -> dict[str, Ends]:
        return self._ends

    def __getitem__(self, topic: str) -> Ends:
        return self._ends[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def after(self, found: Mapping[str, Ends]) -> TopicEnds:
        """``found`` are the topics that were written to since. Logs a warning for each whose partitions have become more."""
        for topic, ends in found.items():
            before = len(self._ends.get(topic, ends))
            if len(ends) > before:
                log.warning(
                    "a topic has more partitions than before: changes of a row from here on may be in another partition than"
                    " its earlier ones, and readers may take them in another order",
                    topic=topic,
                    partitions=len(ends),
                    before=before,
                    offsets=",".join(map(str, ends)),
                )
        kept = {topic: ends for topic, ends in self._ends.items() if topic not in found} | dict(found)
        size = sum(map(_bytes_of, kept.items()))
        for topic in list(kept):
            if size <= MOST_BYTES:
                break
            size -= _bytes_of((topic, kept.pop(topic)))
        return TopicEnds(kept)

    def check(self, now: Mapping[str, Ends], worker: str) -> None:
        """``now`` are the ends of those topics that there are. Raises TerminalError when one has lost records."""
        for topic, ends in self._ends.items():
            here = now.get(topic, ())
            for partition, end in enumerate(ends):
                found = here[partition] if partition < len(here) else 0
                if found < end:
                    raise TerminalError(
                        f"partition {partition} of topic {topic} ends at offset {found}, and worker '{worker}' had written to it"
                        f" up to {end}: the topic was made again, or put back to an earlier state, and has lost records",
                        "restore the topic; or, if its readers can do without those records, run 'pgsluice forget --worker"
                        f" {worker.rpartition('/')[2]}' and start the worker with another --name, which begins anew",
                    )


def _bytes_of(entry: tuple[str, Ends]) -> int:
    topic, ends = entry
    return len(topic.encode()) + _BYTES_OF_NUMBER * len(ends)
