"""Subscriptions in a group's state bucket: the requests of users, and the progress of each receiver.

A subscription is under ``subscription.<id>``, written by commands alone. After each write ``subscriptions_changed`` is
written too, so that a worker detects changes by one key. The progress of receivers is under ``receivers.<worker>``,
written by the worker alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.record import MalformedError, TimeText, malformed, of_fields, pack, unpack
from pgsluice.shared.subscriptions.subscription_settings import EVENTS

CHANGED_KEY = "subscriptions_changed"
_PREFIX = "subscription."
_RECEIVERS_PREFIX = "receivers."
_ID = re.compile(r"[0-9a-f]{16}")
_READS_AT_ONCE = 64


def subscription_key(identifier: str) -> str:
    return _PREFIX + identifier


def receivers_key(worker: str) -> str:
    return _RECEIVERS_PREFIX + worker


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription. Its changes are posted to ``url``, which is secret: ``receiver`` is what may be shown of it.
    ``schema`` and ``table`` are "" for any. It begins after message ``from_sequence`` of the stream. ``resumed`` counts
    how often a user resumed it; ``skips`` is the message after which it continued the last time when it left something
    out, 0 when it did not; ``back_to`` the one after which it got everything again, None when it did not. ``rules`` is
    YAML, "" for none."""

    owner: str
    worker: str
    receiver: str
    url: str = field(repr=False)
    schema: str = ""
    table: str = ""
    events: tuple[str, ...] = EVENTS
    from_sequence: int = 0
    created_at: TimeText = ""
    paused: bool = False
    resumed: int = 0
    skips: int = 0
    back_to: int | None = None
    rules: str = ""

    MALFORMED_REMEDY: ClassVar[str] = "another program wrote it; remove the subscription and subscribe again"


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """``at`` is when a subscription was written last."""

    at: TimeText


@dataclass(frozen=True, slots=True)
class ReceiverState:
    """Progress of a receiver that does not go with the worker: every change up to message ``sequence`` is delivered.

    ``state`` is "behind", "failing" or "paused". ``failing_since`` is when it began to fail, ``reason`` the last
    failure. ``missed``: the messages up to that one were gone before they were delivered. ``resumed`` is the
    subscription's, as it was applied.
    """

    sequence: int
    state: str = "behind"
    failing_since: TimeText = ""
    failures: int = 0
    reason: str = ""
    missed: int = 0
    resumed: int = 0


Standings = tuple[Mapping[str, int], Mapping[str, ReceiverState]]
"""Subscriptions at the worker's position, by id, each with how often a user resumed it, and the states of all others."""


@dataclass(frozen=True, slots=True)
class ReceiversRecord:
    """``live`` are the ids of subscriptions at the worker's position, ``states`` the states of all others by id,
    ``resumed`` how often a user resumed a live one, if ever, by id; all packed."""

    live: str
    states: str
    resumed: str = ""

    MALFORMED_REMEDY: ClassVar[str] = (
        "another program wrote it; 'pgsluice forget --worker' removes the group's records of a worker"
    )

    @classmethod
    def of(cls, live: Mapping[str, int], states: Mapping[str, ReceiverState]) -> ReceiversRecord:
        packed = {identifier: asdict(state) for identifier, state in sorted(states.items())}
        return cls(pack(sorted(live)), pack(packed), pack({each: count for each, count in sorted(live.items()) if count}))

    def read(self) -> Standings:
        """Raises MalformedError."""
        live, states, resumed = unpack(self.live), unpack(self.states), unpack(self.resumed) if self.resumed else {}
        if not isinstance(live, list) or not isinstance(states, dict) or not isinstance(resumed, dict):
            raise MalformedError("live, states or resumed is of another form")
        known = {identifier: of_fields(ReceiverState, state) for identifier, state in states.items()}
        return {str(identifier): int(resumed.get(identifier, 0)) for identifier in live}, known


async def load_subscriptions(bucket: StateBucket) -> dict[str, Entry[SubscriptionRecord]]:
    """Returns all subscriptions, by id. Raises TransientError, TerminalError."""
    identifiers = [key.removeprefix(_PREFIX) for key in await bucket.keys() if key.startswith(_PREFIX)]
    found: dict[str, Entry[SubscriptionRecord]] = {}
    for begin in range(0, len(identifiers), _READS_AT_ONCE):
        some = identifiers[begin : begin + _READS_AT_ONCE]
        entries = await asyncio.gather(*(bucket.read(subscription_key(each), SubscriptionRecord) for each in some))
        found |= {identifier: entry for identifier, entry in zip(some, entries, strict=True) if entry is not None}
    return found


async def load_receivers(bucket: StateBucket, worker: str) -> Standings:
    """Returns the subscriptions that the worker knows: those at its position, and the others. Raises as
    ``Bucket.read``."""
    entry = await bucket.read(receivers_key(worker), ReceiversRecord)
    if entry is None:
        return {}, {}
    try:
        return entry.value.read()
    except MalformedError as error:
        raise malformed(receivers_key(worker), bucket.described, error, ReceiversRecord.MALFORMED_REMEDY) from None


async def read_paused(bucket: StateBucket) -> dict[str, str]:
    """Returns why workers paused subscriptions that no user has paused, by id. Raises as ``Bucket.read``."""
    workers = [key.removeprefix(_RECEIVERS_PREFIX) for key in await bucket.keys() if key.startswith(_RECEIVERS_PREFIX)]
    reasons: dict[str, str] = {}
    for worker in workers:
        _, states = await load_receivers(bucket, worker)
        for identifier, state in states.items():
            entry = await bucket.read(subscription_key(identifier), SubscriptionRecord) if state.state == "paused" else None
            if entry is not None and not entry.value.paused and entry.value.resumed == state.resumed:
                reasons[identifier] = state.reason
    return reasons


def is_subscription_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
