"""Subscriptions: a group's changes are posted to the subscriber's URL. URLs and secrets are never shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import bucket_of, found_bucket
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.subscriptions.subscribing import (
    WORKER,
    SubscriptionView,
    SubscriptionWish,
    is_owned,
    parse_since,
    replay,
    set_paused,
    subscribe,
    unsubscribe,
    views,
)
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.subscriptions.subscription_settings import EVENTS
from pgsluice.shared.wire.names import GroupNames, check_worker_name

MOST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """``schema`` and ``table`` are "" for any. ``rules`` is the text of a rules file, "" for none: they are applied to
    posted changes. ``worker`` is the one that should serve it. ``reason`` is for the audit."""

    url: str = field(repr=False)
    event_types: tuple[str, ...] = EVENTS
    schema: str = ""
    table: str = ""
    rules: str = ""
    worker: str = WORKER
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnsubscribeRequest:
    """``reason`` is for the audit."""

    id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """``skip``: it continues with changes from now on. ``reason`` is for the audit."""

    id: str
    skip: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """``since`` is a time like 2026-01-31T12:00:00Z, "" for all that the stream still holds. ``reason`` is for the audit."""

    id: str
    since: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionList:
    """The oldest first."""

    subscriptions: tuple[SubscriptionView, ...]


@dataclass(frozen=True, slots=True)
class EndedSubscription:
    """``id`` names nothing any more."""

    id: str


async def list_subscriptions(call: Call) -> Answer:
    bucket = await found_bucket(call)
    return Answer(SubscriptionList(() if bucket is None else tuple(await views(bucket))))


async def begin(call: Call) -> Answer:
    """Creates a subscription, owned by the caller."""
    bucket, request = await bucket_of(call), call.body
    for name in ("url", "schema", "table", "worker"):
        if len(getattr(request, name)) > MOST_TEXT:
            raise Problem(ProblemKind.MALFORMED, f"{name} has more than {MOST_TEXT} characters", "shorten it", name)
    check_worker_name(request.worker)
    wish = SubscriptionWish(request.url, request.schema, request.table, request.event_types, request.worker, request.rules)
    names, settings = GroupNames(call.path["group"]), call.parts.settings.subscribing
    identifier, _ = await subscribe(bucket, call.parts.client, names, wish, call.who.name, settings)
    return _shown(await _view(bucket, identifier))


async def end(call: Call) -> Answer:
    bucket, identifier = await bucket_of(call), call.body.id
    await _check_owned(call, bucket)
    await unsubscribe(bucket, identifier, _owner(call))
    return Answer(EndedSubscription(identifier), target=identifier)


async def pause(call: Call) -> Answer:
    bucket, identifier = await bucket_of(call), call.body.id
    await _check_owned(call, bucket)
    await set_paused(bucket, identifier, _owner(call), paused=True)
    return _shown(await _view(bucket, identifier))


async def resume(call: Call) -> Answer:
    bucket, request = await bucket_of(call), call.body
    state = await ChangeStream(call.parts.client, GroupNames(call.path["group"])).state() if request.skip else None
    skip_to = 0 if state is None else state.last_sequence
    await _check_owned(call, bucket)
    await set_paused(bucket, request.id, _owner(call), paused=False, skip_to=skip_to)
    return _shown(await _view(bucket, request.id))


async def start_again(call: Call) -> Answer:
    bucket, request = await bucket_of(call), call.body
    since = parse_since(request.since)
    await _check_owned(call, bucket)
    await replay(bucket, call.parts.client, GroupNames(call.path["group"]), request.id, _owner(call), since)
    return _shown(await _view(bucket, request.id))


def _shown(view: SubscriptionView) -> Answer:
    """Answers with the view. The audit gets the destination of the rows: the receiver's scheme, host and port, and nothing
    else of its URL."""
    return Answer(view, target=f"{view.id} {view.receiver}")


def _owner(call: Call) -> str:
    """Returns the owner whose subscriptions the caller may change: "" for all."""
    return "" if call.who.role.includes(Role.ADMIN) else call.who.name


async def _check_owned(call: Call, bucket: StateBucket) -> None:
    if not await is_owned(bucket, call.body.id, _owner(call)):
        raise Problem(
            ProblemKind.NOT_FOUND, "there is no such subscription", "GET /groups/{group}/webhooks shows those there are", "id"
        )


async def _view(bucket: StateBucket, identifier: str) -> SubscriptionView:
    found = next((view for view in await views(bucket) if view.id == identifier), None)
    if found is None:
        raise Problem(ProblemKind.NOT_FOUND, "another client has ended the subscription")
    return found


ENDPOINTS = (
    Endpoint(
        "GET",
        "/groups/{group}/webhooks",
        "Who is posted a group's changes, and how each receiver fares",
        Role.VIEWER,
        list_subscriptions,
        answer=SubscriptionList,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/webhooks/subscribe",
        "Have a group's changes posted to a URL, which is sent a challenge first",
        Role.OPERATOR,
        begin,
        answer=SubscriptionView,
        body=SubscribeRequest,
        takes_key=True,
        rows=Rows.SENT,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/webhooks/unsubscribe",
        "End a subscription: one's own, or for an admin anybody's",
        Role.OPERATOR,
        end,
        answer=EndedSubscription,
        body=UnsubscribeRequest,
        takes_key=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/webhooks/pause",
        "Have nothing posted to a receiver until it is resumed",
        Role.OPERATOR,
        pause,
        answer=SubscriptionView,
        body=UnsubscribeRequest,
        takes_key=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/webhooks/resume",
        "Resume a paused subscription, at its receiver's position or with new changes only",
        Role.OPERATOR,
        resume,
        answer=SubscriptionView,
        body=ResumeRequest,
        takes_key=True,
        rows=Rows.SENT,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/webhooks/replay",
        "Post earlier changes to a receiver again, as far as the stream still contains them",
        Role.OPERATOR,
        start_again,
        answer=SubscriptionView,
        body=ReplayRequest,
        takes_key=True,
        rows=Rows.SENT,
    ),
)
