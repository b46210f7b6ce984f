"""Transactions across two topics, as a reader of what is committed sees them: are all there, in order, and each as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.position import Position
from pgsluice.testing.batch import Batch
from pgsluice.testing.changes_builder import insert, message, update
from pgsluice.testing.tried_batches import ACCOUNTS, EVENTS
from tests.worker.sinks.kafka.cluster import KafkaDestination, KafkaRecord

KEYS = 7
ORDINALS = {"events": (1, 3), "accounts": (2, 4)}
"""Ordinals of each transaction's changes, by table."""
LSN = 1000


def transaction(number: int, note: bytes = b"n") -> MessageChanges:
    """The message ``number``."""
    accounts = (update(ACCOUNTS, b"%d" % ((number + n) % KEYS), b"%d" % number) for n in range(2))
    event = insert(EVENTS, b"%d" % number, note)
    first, second = accounts
    return message(number, event, first, event, second)


def transactions(numbers: Iterable[int], note: bytes = b"n") -> Batch:
    return [[transaction(number, note)] for number in numbers]


@dataclass(frozen=True, slots=True)
class CommittedHistory:
    """The transactions that are there."""

    times: dict[int, int]
    """How often each source transaction is there."""
    torn: frozenset[int]
    """Those of which a part is there, or parts differently often."""
    steps_back: int
    """Places in partitions at which a transaction follows a later one, or itself."""

    @classmethod
    def whole(cls, last: int) -> CommittedHistory:
        """Each transaction up to ``last`` once, in order."""
        return cls(dict.fromkeys(range(1, last + 1), 1), frozenset(), 0)

    @classmethod
    def read(
        cls, destination: KafkaDestination, tables: Sequence[str] = tuple(ORDINALS), *, waits: bool = True
    ) -> CommittedHistory:
        """To be called while no transaction of Kafka's ends. ``waits``: for those that are open."""
        by_change, steps_back = Counter[tuple[int, int]](), 0
        for table in tables:
            records = destination.reader(table).records(waits=waits)
            places = [(record.partition, _place(record)) for record in records]
            by_change.update(place for _, place in places)
            steps_back += sum(one[0] == other[0] and one[1] >= other[1] for one, other in pairwise(places))
        expected = [ordinal for table in tables for ordinal in ORDINALS[table]]
        numbers = {number for number, _ in by_change}
        counts = {number: {by_change[number, ordinal] for ordinal in expected} for number in numbers}
        torn = frozenset(number for number, found in counts.items() if len(found) > 1)
        return cls({number: min(found) for number, found in counts.items() if number not in torn}, torn, steps_back)


def _place(record: KafkaRecord) -> tuple[int, int]:
    position = Position.parse(record.headers["pgsluice-position"])
    return position.commit_lsn // LSN, position.ordinal
