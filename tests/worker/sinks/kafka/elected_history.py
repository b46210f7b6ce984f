"""A worker with its topics in a cluster whose brokers are killed, and whose leaders are elected, cleanly or not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pgsluice.shared.errors import SinkBehindError, TerminalError, TransientError
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from pgsluice.worker.sinks.sink import Receipt
from tests.servers.kafka_cluster import KafkaCluster
from tests.worker.sinks.kafka import dying_worker
from tests.worker.sinks.kafka.cluster import KafkaDestination, apply_patiently
from tests.worker.sinks.kafka.committed_history import CommittedHistory, transaction, transactions

CLEAN, ALL, DATA, ONE_TOPIC, POSITIONS = "clean", "all topics", "data topics", "one topic", "positions"
BATCHES = 3
"""So many only the broker has which an unclean election passes over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an election; ``lost`` and ``torn`` are numbers of source transactions that Kafka had committed."""

    kind: str
    lost: int
    torn: int
    noticed: str
    sent_again: int
    doubled: int

    def check(self) -> None:
        """Raises AssertionError unless it is what the page says of this kind."""
        match self.kind:
            case "clean":
                assert self == Outcome(CLEAN, 0, 0, "", 0, self.doubled)
            case "all topics":
                assert (self.lost, self.noticed, self.sent_again) == (BATCHES, "75, the position went back", BATCHES)
            case "positions":
                assert (self.lost, self.noticed) == (0, "75, the position went back")
            case _:
                assert (self.lost, self.noticed) == (BATCHES, "70, a topic has lost records")

    def __str__(self) -> str:
        lost = f"{self.lost} transactions" + (f", {self.torn} by half" if self.torn else "")
        return f"| {self.kind} | {lost} | {self.noticed or 'nothing to notice'} | {self.sent_again} | {self.doubled} |"


class ElectedHistory:
    """A worker with its topics in a cluster, from where it began to an election whose consequences stay."""

    def __init__(self, cluster: KafkaCluster, destination: KafkaDestination) -> None:
        self._cluster = cluster
        self.destination = destination
        self._reached = 0
        """Where the newest process of the worker began."""
        self._sink = self._opened()
        self.last = 0
        """The transaction that was applied last."""
        self.is_over = False
        """Readers do not have each transaction once."""
        self._apply(3)
        self._data = [self.destination.reader(table).topic for table in ("events", "accounts")]
        self._positions = self.destination.settings().position_topic
        cluster.wait_until_in_sync(self._topics)

    @property
    def _topics(self) -> list[str]:
        return [*self._data, self._positions]

    def elect(self, kind: str) -> Outcome:
        return self._clean() if kind == CLEAN else self._unclean(kind)

    def kill_worker(self, *death: str | int) -> None:
        """The worker is another process, which is killed at that call (``dying_worker``), and started again."""
        self._sink.close()
        end = dying_worker.run(self.destination, self.last + dying_worker.BATCH_MESSAGES, *death)
        assert end == -signal.SIGKILL
        self._sink = self._opened()
        assert self._reached == self.last, "what was not committed does not count"
        self._apply(dying_worker.BATCH_MESSAGES)
        assert self._history() == CommittedHistory.whole(self.last)

    def close(self) -> None:
        self._sink.close()

    def _clean(self) -> Outcome:
        """Elects in the middle of a batch."""
        before = self._history()

        def interrupted() -> Iterator[Receipt]:
            first, second = write(self._sink, [[transaction(self.last + 1)], [transaction(self.last + 2)]])
            yield first
            self._cluster.elect_cleanly(self._topics)
            yield second

        try:
            self._sink.commit(interrupted(), STREAM_CREATED)
        except TransientError:
            apply_patiently(self._sink, transactions(range(self.last + 1, self.last + 3)))
        self.last += 2
        self._back_again()
        after = self._history()
        assert after == CommittedHistory.whole(self.last), "a clean election loses nothing and doubles nothing"
        return self._outcome(CLEAN, before, before, after, "")

    def _unclean(self, kind: str) -> Outcome:
        electing = {ALL: self._topics, DATA: self._data, ONE_TOPIC: self._data[:1], POSITIONS: [self._positions]}[kind]
        self._cluster.let_elect_uncleanly(electing, allowed=True)
        alone = self._cluster.leader_of(self._data[0])
        self._cluster.leave_alone(alone, self._topics)
        self._apply(BATCHES)
        before = self._history()
        self._cluster.elect_uncleanly(alone, electing)
        self._back_again()
        self._cluster.let_elect_uncleanly(electing, allowed=False)
        between = self._history()
        noticed = self._go_on()
        after = self._history()
        self.is_over = after != CommittedHistory.whole(self.last)
        return self._outcome(kind, before, between, after, noticed)

    def _go_on(self) -> str:
        """Starts the worker again as a supervisor does; returns what it said when it ended."""
        try:
            self._apply(1)
        except SinkBehindError as error:
            self._sink.close()
            self._sink = self._opened()
            apply_patiently(self._sink, transactions(range(self._reached + 1, self.last + 2)))
            self.last += 1
            return f"75, {_told(error)}"
        except TerminalError as error:
            self._sink.close()
            with pytest.raises(TerminalError, match="has lost records"):
                self._opened()
            return f"70, {_told(error)}"
        return ""

    def _apply(self, count: int) -> None:
        for number in range(self.last + 1, self.last + 1 + count):
            apply_patiently(self._sink, transactions([number]))
            self.last = number

    def _opened(self) -> KafkaSink:
        sink = self.destination.new_sink()
        self._reached = sink.open().sequence
        return sink

    def _back_again(self) -> None:
        self._cluster.start_all()
        self._cluster.wait_until_in_sync(self._topics)

    def _history(self) -> CommittedHistory:
        return CommittedHistory.read(self.destination)

    def _outcome(
        self, kind: str, before: CommittedHistory, between: CommittedHistory, after: CommittedHistory, noticed: str
    ) -> Outcome:
        lost = before.times.keys() - between.times.keys()
        again = [number for number in before.times if after.times.get(number, 0) > between.times.get(number, 0)]
        doubled = sum(times > 1 for times in after.times.values())
        return Outcome(kind, len(lost), len(between.torn), noticed, len(again), doubled)


def _told(error: TerminalError) -> str:
    return "a topic has lost records" if "has lost records" in error.fact else "the position went back"
