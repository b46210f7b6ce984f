"""The subscribers of an event: found by its schema, table and kind, however many subscriptions there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pgsluice.worker.sinks.subscriptions.event_writer import Event, EventKind, MessageEvents, Seen, Unseen, Unworkable
from pgsluice.worker.sinks.subscriptions.subscriber import Subscriber

Share = list[bytes] | Unworkable | Unseen
"""The events of a message for a subscriber, in order, or why they are not known."""


class EventIndex:
    """An index of subscribers that do not change."""

    def __init__(self, subscribers: Iterable[Subscriber]) -> None:
        by_view: dict[bytes | None, list[Subscriber]] = {}
        for subscriber in subscribers:
            by_view.setdefault(subscriber.view_digest, []).append(subscriber)
        self._by_view = {digest: _ViewIndex(each) for digest, each in by_view.items()}

    def shares(self, message: MessageEvents) -> Iterator[tuple[Subscriber, Share]]:
        """Yields each subscriber that wants something of the message, with its share."""
        for digest, index in self._by_view.items():
            seen = message.seen(digest)
            if isinstance(seen, list):
                yield from index.shares(seen)
            else:
                yield from ((subscriber, seen) for subscriber in index.concerned(message.events))


class _ViewIndex:
    """An index of subscribers with the same view."""

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self._subscribers = subscribers
        self._by_pattern: dict[EventKind, list[Subscriber]] = {}
        for subscriber in subscribers:
            record = subscriber.record
            for event in record.events:
                self._by_pattern.setdefault(EventKind(record.schema, record.table, event), []).append(subscriber)
        self._found: dict[EventKind, Sequence[Subscriber]] = {}

    def shares(self, events: Sequence[Event]) -> Iterator[tuple[Subscriber, list[bytes]]]:
        kinds = {event.kind for event in events}
        if len(kinds) == 1:
            wanting = self._wanting(next(iter(kinds)))
            if wanting:
                texts = [event.text for event in events]
                yield from ((subscriber, texts) for subscriber in wanting)
            return
        shares: dict[Subscriber, list[bytes]] = {}
        for event in events:
            for subscriber in self._wanting(event.kind):
                shares.setdefault(subscriber, []).append(event.text)
        yield from shares.items()

    def concerned(self, events: Sequence[Event]) -> Iterator[Subscriber]:
        """Yields subscribers whose rules may make an event that they want of these events: rules can change the kind."""
        tables = {event.kind[:2] for event in events}
        for subscriber in self._subscribers:
            if any(is_about(subscriber, *table) for table in tables):
                yield subscriber

    def _wanting(self, kind: EventKind) -> Sequence[Subscriber]:
        found = self._found.get(kind)
        if found is None:
            found = self._found[kind] = [each for pattern in _patterns(kind) for each in self._by_pattern.get(pattern, ())]
        return found


def _patterns(kind: EventKind) -> Iterator[EventKind]:
    """Yields all filter values that match this event kind (exact and wildcard)."""
    for schema in (kind.schema, ""):
        for table in (kind.table, ""):
            yield EventKind(schema, table, kind.event)


def is_about(subscriber: Subscriber, schema: str, table: str) -> bool:
    record = subscriber.record
    return record.schema in ("", schema) and record.table in ("", table)


def share_of(subscriber: Subscriber, message: MessageEvents) -> Share:
    """Returns the events of the message for one subscriber."""
    seen: Seen = message.seen(subscriber.view_digest)
    if isinstance(seen, list):
        return [
            each.text for each in seen if each.kind.event in subscriber.record.events and is_about(subscriber, *each.kind[:2])
        ]
    return seen if any(is_about(subscriber, *event.kind[:2]) for event in message.events) else []
