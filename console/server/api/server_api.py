"""The server itself: what it is, how its API is described, who did what."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from pgsluice.console.server import openapi
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.audit import NumberedEntry
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint
from pgsluice.console.server.problem import Kind, Problem
from pgsluice.console.server.typed_json import Json

MOST_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class ServerView:
    """``runs``: it runs processes of groups itself. ``who``, ``role``, ``values`` are those of whoever asks."""

    version: str
    runs: bool
    nats_connected: bool
    who: str
    role: Role
    values: bool


@dataclass(frozen=True, slots=True)
class HealthView:
    """``reason`` says what is not well, "" when all is."""

    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """``before`` is the sequence of the last entry that is known, to go on from there."""

    limit: int = 100
    before: int | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The newest first. ``next_before`` leads to earlier ones; None when there are none."""

    entries: tuple[NumberedEntry, ...]
    next_before: int | None


async def show_server(call: Call) -> Answer:
    who, parts = call.who, call.parts
    view = ServerView(parts.version, parts.settings.runs, parts.client.is_connected, who.name, who.role, who.values)
    return Answer(view)


async def show_health(call: Call) -> Answer:
    if call.parts.client.is_connected:
        return Answer(HealthView(True, ""))
    return Answer(HealthView(False, "NATS does not answer"), status=Kind.UNAVAILABLE.status)


async def show_audit(call: Call) -> Answer:
    limit = call.query.limit
    if not 1 <= limit <= MOST_ENTRIES:
        raise Problem(Kind.MALFORMED, f"limit is not from 1 to {MOST_ENTRIES}", "ask for less at once", "limit")
    entries = await call.parts.audit.newest(limit, call.query.before)
    following = entries[-1].sequence if len(entries) == limit and entries[-1].sequence > 1 else None
    return Answer(AuditPage(tuple(entries), following))


def description_endpoint(others: tuple[Endpoint, ...], version: str) -> Endpoint:
    """The row that describes ``others`` and itself."""

    @functools.cache
    def document() -> dict[str, Any]:
        return openapi.describe((*others, row), version)

    async def show_description(call: Call) -> Answer:
        return Answer(document())

    row = Endpoint("GET", "/openapi.json", "This description of the API", Role.VIEWER, show_description, answer=Json)
    return row


ENDPOINTS = (
    Endpoint("GET", "/", "The server, and what whoever asks may do", Role.VIEWER, show_server, answer=ServerView),
    Endpoint("GET", "/health", "Whether the server can do its work", Role.VIEWER, show_health, answer=HealthView),
    Endpoint(
        "GET", "/audit", "Who did what to what, the newest first", Role.VIEWER, show_audit, answer=AuditPage, query=AuditQuery
    ),
)
