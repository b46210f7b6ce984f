"""A message of a change stream whose changes lie in Kafka: a range of records of one partition.

Such a stream is an index. Its messages have the headers of any change stream (``shared.wire.message``, the format
FORMAT_KAFKA), so sequences, positions, batches and anchors mean what they mean elsewhere; the body names a range of
offsets in the place of frames, as JSON:

    cluster, topic, topic_id, partition     where; the id is another one when a topic was created again under its name
    first, end                              offsets: the first one, and the one after the last
    ends                                    of every partition that is read, what is in the index up to this message:
                                            topic to [topic id, [offset of partition 0, of partition 1, …]]

So the sequence of a worker's position names a vector of offsets, one for each partition, and never another one.
Positions of the changes in it are the index's own: each record has a commit LSN, counted up over all partitions.
``Pgsluice-Size`` estimates the bytes of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from pgsluice.shared.errors import WireError


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """Offsets by partition."""

    topic_id: str
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KafkaRange:
    cluster: str
    topic: str
    topic_id: str
    partition: int
    first: int
    end: int

    @property
    def records(self) -> int:
        """Maximum number of records; markers of transactions have offsets too."""
        return self.end - self.first

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.first}-{self.end}"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    range: KafkaRange
    ends: Mapping[str, TopicEnds]

    def encode(self) -> bytes:
        at = self.range
        ends = {topic: [each.topic_id, list(each.offsets)] for topic, each in sorted(self.ends.items())}
        content: dict[str, Any] = {name: getattr(at, name) for name in at.__slots__} | {"ends": ends}
        return orjson.dumps(content | {"check": _digest(content)})

    @classmethod
    def decode(cls, body: bytes) -> IndexEntry:
        """Raises WireError."""
        try:
            content = orjson.loads(body)
            if not isinstance(content, dict):
                raise ValueError("it is no object")
            if content.pop("check") != _digest(content):
                raise ValueError("its digest is another one")
            ends = {topic: TopicEnds(topic_id, tuple(offsets)) for topic, (topic_id, offsets) in content.pop("ends").items()}
            return cls(KafkaRange(**content), ends)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"a message that names records in Kafka is malformed ({type(error).__name__})") from None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
