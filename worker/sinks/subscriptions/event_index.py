"""Who wants an event: found by its schema, table and kind, however many subscriptions there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pgsluice.worker.sinks.subscriptions.event_writer import Event, EventKind, MessageEvents
from pgsluice.worker.sinks.subscriptions.subscriber import Subscriber


class EventIndex:
    """Of subscribers that do not change."""

    def __init__(self, subscribers: Iterable[Subscriber]) -> None:
        self._by_pattern: dict[EventKind, list[Subscriber]] = {}
        for subscriber in subscribers:
            record = subscriber.record
            for event in record.events:
                self._by_pattern.setdefault(EventKind(record.schema, record.table, event), []).append(subscriber)
        self._found: dict[EventKind, Sequence[Subscriber]] = {}

    def wanting(self, kind: EventKind) -> Sequence[Subscriber]:
        found = self._found.get(kind)
        if found is None:
            found = self._found[kind] = [each for pattern in patterns(kind) for each in self._by_pattern.get(pattern, ())]
        return found

    def shares(self, message: MessageEvents) -> Iterator[tuple[Subscriber, list[bytes]]]:
        """Each who wants events of the message, with these in order."""
        kinds = {event.kind for event in message.events}
        if len(kinds) == 1:
            texts = [event.text for event in message.events]
            for subscriber in self.wanting(next(iter(kinds))):
                yield subscriber, texts
            return
        shares: dict[Subscriber, list[bytes]] = {}
        for event in message.events:
            for subscriber in self.wanting(event.kind):
                shares.setdefault(subscriber, []).append(event.text)
        yield from shares.items()


def patterns(kind: EventKind) -> Iterator[EventKind]:
    """What subscriptions may say that means it."""
    for schema in (kind.schema, ""):
        for table in (kind.table, ""):
            yield EventKind(schema, table, kind.event)


def wanted_texts(subscriber: Subscriber, events: Sequence[Event]) -> list[bytes]:
    """Those of ``events`` that one subscriber wants, in order."""
    record = subscriber.record
    return [
        event.text
        for event in events
        if event.kind.event in record.events
        and record.schema in ("", event.kind.schema)
        and record.table in ("", event.kind.table)
    ]
