"""Groups as they are: all of them, one of them, its figures over time, and what changes as it changes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.live.group_looks import GroupView
from pgsluice.console.server.live.series import Series, SeriesName
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.wire.names import GroupNames

DEFAULT_SERIES_S = 3600.0


@dataclass(frozen=True, slots=True)
class GroupList:
    """Groups by name."""

    groups: tuple[GroupView, ...]


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """``name`` is empty for all series. ``since_s`` is in seconds since 1970, None for an hour ago."""

    name: tuple[SeriesName, ...] = ()
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class SeriesList:
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class EventsQuery:
    """``after`` is the number of the newest view that is known already; 0 for all that there are."""

    after: int = 0


async def list_groups(call: Call) -> Answer:
    return Answer(GroupList(tuple(view for view in call.parts.looks.views if call.who.sees(view.group))))


async def show_group(call: Call) -> Answer:
    return Answer(await view_of(call))


async def view_of(call: Call) -> GroupView:
    """Returns the view of the group in the path. Raises Problem for an unknown group."""
    group = call.path["group"]
    view = call.parts.looks.view(group) or await call.parts.looks.look_now(group)
    if view is None:
        raise Problem(
            ProblemKind.NOT_FOUND, f"there is no group '{group}' on this NATS", "GET /api/v1/groups lists those that there are"
        )
    return view


async def bucket_of(call: Call) -> StateBucket:
    """Returns the state bucket of the group in the path. Raises Problem when there is no such group, or it was never
    started."""
    bucket = await found_bucket(call)
    if bucket is None:
        group = call.path["group"]
        raise Problem(
            ProblemKind.CONFLICT, f"group '{group}' was never started", "start its replicator first, or have a server run it"
        )
    return bucket


async def found_bucket(call: Call) -> StateBucket | None:
    """Returns the bucket of the group in the path; None for a group with only a document."""
    bucket = StateBucket(call.parts.client, GroupNames((await view_of(call)).group))
    return bucket if await bucket.exists() else None


async def show_series(call: Call) -> Answer:
    view = await view_of(call)
    since_s = time.time() - DEFAULT_SERIES_S if call.query.since_s is None else call.query.since_s
    if not 0 <= since_s <= 2**40:
        raise Problem(
            ProblemKind.MALFORMED, "since_s is not a time in seconds since 1970", "leave it out for the last hour", "since_s"
        )
    names = call.query.name or tuple(SeriesName)
    return Answer(SeriesList(tuple(call.parts.series.read(view.group, name, since_s) for name in names)))


async def stream_events(call: Call) -> Answer:
    return Answer(call.parts.streams.open(call.who, call.query.after))


ENDPOINTS = (
    Endpoint(
        "GET", "/groups", "All groups on this NATS, as last seen", Role.VIEWER, list_groups, answer=GroupList, rows=Rows.STAY
    ),
    Endpoint("GET", "/groups/{group}", "One group, as last seen", Role.VIEWER, show_group, answer=GroupView, rows=Rows.STAY),
    Endpoint(
        "GET",
        "/groups/{group}/series",
        "A group's figures over the last 24 hours",
        Role.VIEWER,
        show_series,
        answer=SeriesList,
        query=SeriesQuery,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/events",
        "Views of groups as they change, as server-sent events",
        Role.VIEWER,
        stream_events,
        query=EventsQuery,
        media_type="text/event-stream",
        rows=Rows.STAY,
    ),
)
