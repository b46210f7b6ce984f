"""The work of ``pgsluice subscriptions``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

import orjson
from nats.aio.client import Client

from pgsluice.console.columns import format_columns
from pgsluice.console.subscriptions.subscribing import (
    SubscriptionView,
    SubscriptionWish,
    parse_since,
    replay,
    set_paused,
    subscribe,
    unsubscribe,
    views,
)
from pgsluice.shared.broker.bucket import StateBucket, opened_bucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.config.settings import GroupSettings, SubscriptionGroupSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.subscriptions.subscription_secret import master_keys, subscription_secrets

_TITLES = ("ID", "OWNER", "RECEIVER", "WHAT", "EVENTS", "STATE", "BEHIND", "REASON")


def begin(settings: SubscriptionGroupSettings, wish: SubscriptionWish, owner: str) -> None:
    """Prints the id. Raises as ``subscribe``."""
    asyncio.run(_begin(settings, wish, owner))


async def _begin(settings: SubscriptionGroupSettings, wish: SubscriptionWish, owner: str) -> None:
    async with _opened(settings) as (bucket, client):
        identifier, _ = await subscribe(bucket, client, GroupNames(settings.group), wish, owner, settings.subscribing)
    sys.stdout.write(f"{identifier}\n")


def end(settings: GroupSettings, identifier: str) -> None:
    asyncio.run(_end(settings, identifier))


async def _end(settings: GroupSettings, identifier: str) -> None:
    async with _opened(settings) as (bucket, _):
        await unsubscribe(bucket, identifier, "")


def show(settings: GroupSettings, *, as_json: bool) -> None:
    found = asyncio.run(_views(settings))
    if as_json:
        sys.stdout.writelines(orjson.dumps(asdict(view)).decode() + "\n" for view in found)
    else:
        sys.stdout.writelines(f"{line}\n" for line in format_columns(_TITLES, [_row(view) for view in found]))


async def _views(settings: GroupSettings) -> list[SubscriptionView]:
    async with _opened(settings) as (bucket, _):
        return await views(bucket)


def halt(settings: GroupSettings, identifier: str, *, paused: bool, skip: bool = False) -> None:
    asyncio.run(_halt(settings, identifier, paused=paused, skip=skip))


async def _halt(settings: GroupSettings, identifier: str, *, paused: bool, skip: bool) -> None:
    async with _opened(settings) as (bucket, client):
        state = await ChangeStream(client, GroupNames(settings.group)).state() if skip else None
        await set_paused(bucket, identifier, "", paused=paused, skip_to=0 if state is None else state.last_sequence)


def start_again(settings: GroupSettings, identifier: str, since: str) -> None:
    """``since`` is "" for all that is kept. Raises UsageError."""
    asyncio.run(_start_again(settings, identifier, since))


async def _start_again(settings: GroupSettings, identifier: str, since: str) -> None:
    async with _opened(settings) as (bucket, client):
        await replay(bucket, client, GroupNames(settings.group), identifier, "", parse_since(since))


def print_secret(settings: SubscriptionGroupSettings, identifier: str) -> None:
    masters = master_keys(settings.subscribing.common.secret)
    sys.stdout.writelines(f"{each}\n" for each in subscription_secrets(masters, settings.group, identifier))


@asynccontextmanager
async def _opened(settings: GroupSettings | SubscriptionGroupSettings) -> AsyncIterator[tuple[StateBucket, Client]]:
    async with connected(settings.nats, f"pgsluice subscriptions {settings.group}") as client:
        yield await opened_bucket(client, GroupNames(settings.group)), client


def _row(view: SubscriptionView) -> tuple[str, ...]:
    what = f"{view.schema or '*'}.{view.table or '*'}{' by rules' if view.rules else ''}"
    behind = "?" if view.behind_messages is None else str(view.behind_messages)
    reason = view.reason or (f"messages up to {view.missed} were gone" if view.missed else "")
    return view.id, view.owner, view.receiver, what, ",".join(view.events), view.state, behind, reason
