"""All receivers of a worker: who goes with it, who joins it again, and what is written of the others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from pgsluice.shared import telemetry
from pgsluice.shared.subscriptions.subscription_records import ReceiverState, Standings, SubscriptionRecord
from pgsluice.worker.sinks.subscriptions.subscriber import Standing, Subscriber
from pgsluice.worker.sinks.subscriptions.subscription_book import Subscriptions
from pgsluice.worker.sinks.subscriptions.subscription_rules import EventView

log = telemetry.logger(__name__)

NewSubscriber = Callable[[str, SubscriptionRecord, int], Subscriber]
Told = Callable[[Subscriber], None]


class Receivers:
    """``lock`` guards all subscribers. ``left`` is called, with the lock held, with one that is paused or gone,
    ``scheduled`` with one that must be served from the stream."""

    def __init__(self, lock: threading.Condition, new: NewSubscriber, left: Told, scheduled: Told) -> None:
        self._lock = lock
        self._new = new
        self._left = left
        self._scheduled = scheduled
        self._all: dict[str, Subscriber] = {}
        self._applied = 0

    def begin(self, subscriptions: Subscriptions, standings: Standings, applied: int) -> None:
        """Begins with the stored states. Receivers that went with the worker are at its position."""
        live, states = standings
        self._applied = applied
        with self._lock:
            for identifier, entry in subscriptions.items():
                record = entry.value
                begin = max(applied, record.from_sequence) if identifier in live else record.from_sequence
                subscriber = self._all[identifier] = self._new(identifier, record, begin)
                if identifier in states:
                    subscriber.take_state(states[identifier])
                elif identifier in live:
                    subscriber.resumed = live[identifier]
                self._obey(subscriber, record)

    def take(self, subscriptions: Subscriptions) -> None:
        """Takes over all subscriptions there are now."""
        with self._lock:
            for identifier in [identifier for identifier in self._all if identifier not in subscriptions]:
                subscriber = self._all.pop(identifier)
                self._left(subscriber)
                subscriber.pause()
                log.info("a subscription ended", subscription=identifier)
            for identifier, entry in subscriptions.items():
                subscriber = self._all.get(identifier) or self._new(identifier, entry.value, entry.value.from_sequence)
                if identifier not in self._all:
                    log.info("a subscription begins", subscription=identifier, receiver=entry.value.receiver)
                    self._all[identifier] = subscriber
                self._obey(subscriber, entry.value)
                self._schedule(subscriber)

    def views(self) -> Sequence[EventView]:
        """Returns the views to compute, in addition to the common events."""
        with self._lock:
            receiving = [each for each in self._all.values() if each.standing is not Standing.PAUSED]
            views = {each.view for each in receiving if each.view is not None}
        return sorted(views, key=lambda view: view.digest)

    def join_all(self) -> list[Subscriber]:
        """Joins and returns all receivers that are not paused, whatever their state."""
        with self._lock:
            members = [each for each in self._all.values() if each.standing is not Standing.PAUSED]
            for subscriber in members:
                subscriber.join()
            return members

    def members(self) -> list[Subscriber]:
        """Returns the receivers of the next batch: the last one's, and receivers that have caught up since."""
        with self._lock:
            for subscriber in self._all.values():
                if self._may_join(subscriber):
                    subscriber.join()
            return [each for each in self._all.values() if each.standing is Standing.LIVE]

    def serve_behind(self) -> None:
        """Begins to serve lagging receivers."""
        self.note_applied(self._applied)

    def note_applied(self, sequence: int) -> None:
        """Notes the worker's progress, which lagging receivers follow."""
        with self._lock:
            self._applied = sequence
            for subscriber in self._all.values():
                self._schedule(subscriber)

    def rewind(self, sequence: int) -> None:
        """Restarts at that message, the worker's, after the stream was numbered again. The places of the others are
        unknown: they get all kept messages again."""
        with self._lock:
            for subscriber in self._all.values():
                subscriber.rewind(0 if subscriber.sequence < self._applied else sequence)
            self._applied = sequence

    def standings(self) -> Standings:
        """Returns the states to store."""
        with self._lock:
            states: dict[str, ReceiverState] = {}
            live: dict[str, int] = {}
            for identifier, subscriber in self._all.items():
                if subscriber.standing is Standing.LIVE:
                    live[identifier] = subscriber.resumed
                else:
                    states[identifier] = subscriber.state()
            return live, states

    def held(self) -> int | None:
        """Returns the message after which a lagging receiver needs messages; None without one."""
        with self._lock:
            behind = [each.sequence for each in self._all.values() if each.standing is Standing.BEHIND]
        return min(behind, default=None)

    def counts(self) -> tuple[Counter[str], int]:
        """Returns the number of receivers in each state, and the lag, in messages, of the last active one."""
        live, states = self.standings()
        counts = Counter(state.state for state in states.values())
        counts[Standing.LIVE.value] = len(live)
        held = self.held()
        return counts, 0 if held is None else max(0, self._applied - held)

    def abort(self) -> None:
        """Aborts all, from any thread, and for good."""
        for subscriber in list(self._all.values()):
            subscriber.abort()

    def close(self) -> None:
        for subscriber in list(self._all.values()):
            subscriber.close()

    def _may_join(self, subscriber: Subscriber) -> bool:
        is_idle = not (subscriber.is_scheduled or subscriber.pending) and subscriber.sent_at is None
        return subscriber.standing is Standing.BEHIND and is_idle and subscriber.may_join and subscriber.sequence >= self._applied

    def _schedule(self, subscriber: Subscriber) -> None:
        if subscriber.standing is Standing.BEHIND and subscriber.sequence < self._applied:
            self._scheduled(subscriber)

    def _obey(self, subscriber: Subscriber, record: SubscriptionRecord) -> None:
        """Applies a user's changes of the subscription."""
        subscriber.take_record(record)
        if record.paused and subscriber.standing is not Standing.PAUSED:
            self._left(subscriber)
            subscriber.pause()
        elif not record.paused and record.resumed != subscriber.resumed:
            self._left(subscriber)
            subscriber.resume(record)
