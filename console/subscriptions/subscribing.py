"""Operations on subscriptions, over a group's state bucket. Command and server call this.

A subscription has an owner. ``owner`` "" in a request means any owner, for administrators.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from nats.aio.client import Client

from pgsluice.console.subscriptions.challenge import challenge
from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.change_retention import newest_before
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.config.kinds import parse_url
from pgsluice.shared.errors import UsageError
from pgsluice.shared.http.receiver import Receiver
from pgsluice.shared.preflight.finding import listed
from pgsluice.shared.subscriptions.subscription_records import (
    CHANGED_KEY,
    ChangedRecord,
    ReceiverState,
    Standings,
    SubscriptionRecord,
    is_subscription_id,
    load_receivers,
    load_subscriptions,
    subscription_key,
)
from pgsluice.shared.subscriptions.subscription_settings import EVENTS, OPTIONS, SubscribingSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.subscriptions.subscription_rules import read_rules
from pgsluice.worker.sinks.subscriptions.subscription_secret import master_keys, subscription_signer

WORKER = "subscriptions"
"""Default name of the worker that serves them."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class SubscriptionWish:
    """A requested subscription; ``schema`` and ``table`` are "" for any. ``rules`` is YAML, "" for none."""

    url: str = field(repr=False)
    schema: str = ""
    table: str = ""
    events: tuple[str, ...] = EVENTS
    worker: str = WORKER
    rules: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """One subscription as it may be shown. ``state`` is "live", "behind", "failing" or "paused", or "new" when no
    worker knows of it yet; ``behind_messages`` is None if unknown. ``reason`` is why it fails, or why no event will
    come. ``missed`` is the last message that was gone before it was delivered, 0 without one. ``rules`` is YAML, "" for
    none."""

    id: str
    owner: str
    worker: str
    receiver: str
    schema: str
    table: str
    events: tuple[str, ...]
    created_at: str
    revision: int
    state: str
    behind_messages: int | None
    failing_since: str
    failures: int
    reason: str
    missed: int
    rules: str


async def subscribe(
    bucket: StateBucket, client: Client, names: GroupNames, wish: SubscriptionWish, owner: str, settings: SubscribingSettings
) -> tuple[str, bool]:
    """Returns the subscription's id, and whether it is new: an equal request gets the existing one. Raises UsageError
    for an invalid request or too many, TerminalError and TransientError as ``challenge``."""
    masters = master_keys(settings.common.secret)
    asked = await asyncio.to_thread(_asked, wish, owner)  # its rules take a moment to be read
    mine = await _of_owner(bucket, owner)
    for identifier, entry in mine.items():
        if _is_same(entry.value, asked):
            return identifier, False
    if len(mine) >= settings.per_owner:
        raise _too_many(owner, settings.per_owner)
    identifier = secrets.token_hex(8)
    signer = subscription_signer(masters, names.group, identifier)
    await asyncio.to_thread(challenge, wish.url, identifier, settings.common, signer)
    state = await ChangeStream(client, names).state()
    record = replace(asked, from_sequence=0 if state is None else state.last_sequence, created_at=_now())
    revision = await bucket.create(subscription_key(identifier), record)
    assert revision is not None, "the id is random"
    earlier = await _earlier(bucket, owner, revision)
    same = next((other for other, entry in earlier if _is_same(entry.value, asked)), None)
    if same is not None or len(earlier) >= settings.per_owner:
        await bucket.delete(subscription_key(identifier))
        if same is None:
            raise _too_many(owner, settings.per_owner)
        return same, False
    await _tell(bucket)
    return identifier, True


async def unsubscribe(bucket: StateBucket, identifier: str, owner: str) -> None:
    """Raises UsageError for an unknown subscription, or another owner's."""
    await _found(bucket, identifier, owner)
    await bucket.purge(subscription_key(identifier))
    await _tell(bucket)


async def is_owned(bucket: StateBucket, identifier: str, owner: str) -> bool:
    """Returns whether there is such a subscription, and it is ``owner``'s."""
    entry = await bucket.read(subscription_key(identifier), SubscriptionRecord) if is_subscription_id(identifier) else None
    return entry is not None and owner in ("", entry.value.owner)


async def set_paused(
    bucket: StateBucket, identifier: str, owner: str, *, paused: bool, skip_to: int = 0, back_to: int | None = None
) -> None:
    """``skip_to``: it continues after that message at the earliest. ``back_to``: it gets everything after that message
    again. Requests that its worker has not applied yet stay valid: a plain resume takes none back, and of two replays
    the one that goes back further wins. Raises as ``unsubscribe``."""
    while True:
        entry = await _found(bucket, identifier, owner)
        record = replace(entry.value, paused=paused)
        if not paused:
            if record.resumed != await _obeyed(bucket, identifier, record.worker):
                if back_to is not None and record.back_to is not None:
                    back_to = min(back_to, record.back_to)
                elif back_to is None and not skip_to:
                    skip_to, back_to = record.skips, record.back_to
            record = replace(record, resumed=record.resumed + 1, skips=skip_to, back_to=back_to)
        if await bucket.update(subscription_key(identifier), record, entry.revision) is not None:
            break
    await _tell(bucket)


async def _obeyed(bucket: StateBucket, identifier: str, worker: str) -> int:
    """Returns how many of a user's requests to resume the worker has applied, according to the worker's record."""
    live, states = await load_receivers(bucket, worker)
    return states[identifier].resumed if identifier in states else live.get(identifier, 0)


def parse_since(text: str) -> datetime | None:
    """Returns None for "". A time without a zone is UTC. Raises UsageError."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is no time", "write one like 2026-01-31T12:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


async def replay(
    bucket: StateBucket, client: Client, names: GroupNames, identifier: str, owner: str, since: datetime | None
) -> None:
    """Requests that its receiver gets the changes published ``since`` then again (None: all that the stream still
    holds), and then continues. Raises as ``unsubscribe``."""
    stream = ChangeStream(client, names)
    state = await stream.state()
    back_to = 0 if state is None else state.first_sequence - 1
    if state is not None and since is not None:
        back_to = await newest_before(stream, since, state.first_sequence, state.last_sequence) or back_to
    await set_paused(bucket, identifier, owner, paused=False, back_to=back_to)


async def views(bucket: StateBucket) -> list[SubscriptionView]:
    """Returns all subscriptions of a group, the oldest first."""
    found = await load_subscriptions(bucket)
    workers = {entry.value.worker for entry in found.values()}
    known = {worker: await load_receivers(bucket, worker) for worker in workers}
    reports = {worker: await bucket.read(worker_key(worker), WorkerReport) for worker in workers}
    tables = await load_tables(bucket)
    seen = []
    for identifier, entry in found.items():
        report = reports[entry.value.worker]
        applied = None if report is None else report.value.sequence
        seen.append(_view(identifier, entry, known[entry.value.worker], applied, tables))
    return sorted(seen, key=lambda view: (view.created_at, view.id))


def _view(
    identifier: str,
    entry: Entry[SubscriptionRecord],
    known: Standings,
    applied: int | None,
    tables: Sequence[Table] | None,
) -> SubscriptionView:
    record, (live, states) = entry.value, known
    state = states.get(identifier)
    behind = 0 if identifier in live else None
    if state is not None and applied is not None:
        behind = max(0, applied - state.sequence)
    name = "live" if identifier in live else "new" if state is None else state.state
    state = state or ReceiverState(0)
    return SubscriptionView(
        identifier,
        record.owner,
        record.worker,
        record.receiver,
        record.schema,
        record.table,
        record.events,
        record.created_at,
        entry.revision,
        "paused" if record.paused else name,
        behind,
        state.failing_since,
        state.failures,
        state.reason or _absent(record, tables),
        state.missed,
        record.rules,
    )


def _absent(record: SubscriptionRecord, tables: Sequence[Table] | None) -> str:
    """Returns why no event comes, if the replicator has named no such table; "" else."""
    if not tables or any(record.schema in ("", each.schema) and record.table in ("", each.name) for each in tables):
        return ""
    wanted = f"{record.schema or '*'}.{record.table or '*'}"
    there = listed(sorted(each.qualified_name for each in tables), MOST_NAMED)
    return f"the group has no table {wanted}: nothing comes unless one is added, or a route gives one that name; it has {there}"


def _asked(wish: SubscriptionWish, owner: str) -> SubscriptionRecord:
    try:
        url = parse_url(wish.url)
    except ValueError as error:
        raise UsageError(f"the url {error}", "give the receiver's URL") from None
    unknown = [event for event in wish.events if event not in EVENTS]
    if unknown or not wish.events:
        raise UsageError(f"there is no event type '{unknown[0] if unknown else ''}'", f"there are {', '.join(EVENTS)}")
    events = tuple(event for event in EVENTS if event in wish.events)
    receiver = Receiver.parse(url, OPTIONS).origin
    rules = wish.rules if read_rules(wish.rules).entries else ""
    return SubscriptionRecord(owner, wish.worker, receiver, url, wish.schema, wish.table, events, rules=rules)


def _is_same(there: SubscriptionRecord, asked: SubscriptionRecord) -> bool:
    return _what(there) == _what(asked)


def _what(record: SubscriptionRecord) -> tuple[object, ...]:
    return record.url, record.schema, record.table, record.events, record.worker, record.rules


async def _of_owner(bucket: StateBucket, owner: str) -> dict[str, Entry[SubscriptionRecord]]:
    return {identifier: entry for identifier, entry in (await load_subscriptions(bucket)).items() if entry.value.owner == owner}


async def _earlier(bucket: StateBucket, owner: str, revision: int) -> list[tuple[str, Entry[SubscriptionRecord]]]:
    """Returns earlier subscriptions of the owner. Others may have subscribed for the same owner meanwhile: the first
    one wins, for all of them alike. The first is first."""
    found = [(identifier, entry) for identifier, entry in (await _of_owner(bucket, owner)).items() if entry.revision < revision]
    return sorted(found, key=lambda each: each[1].revision)


def _too_many(owner: str, per_owner: int) -> UsageError:
    return UsageError(
        f"'{owner}' has {per_owner} subscriptions already", "unsubscribe one, or have subscriptions-per-owner allow more"
    )


async def _found(bucket: StateBucket, identifier: str, owner: str) -> Entry[SubscriptionRecord]:
    key = subscription_key(identifier)
    entry = await bucket.read(key, SubscriptionRecord) if is_subscription_id(identifier) else None
    if entry is None or owner not in ("", entry.value.owner):
        raise UsageError("there is no such subscription", "'pgsluice subscriptions list' shows those that there are")
    return entry


async def _tell(bucket: StateBucket) -> None:
    """Makes the worker read subscriptions again."""
    await bucket.put(CHANGED_KEY, ChangedRecord(_now()))


def _now() -> str:
    return datetime.now(UTC).isoformat()
