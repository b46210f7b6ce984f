"""The server itself: what it is, how its API is described, who did what."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from pgsluice.console.server import openapi
from pgsluice.console.server.access.principal import Principal, Role
from pgsluice.console.server.audit import AuditEntry, AuditPart
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.typed_json import Json

MOST_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class ServerView:
    """``runs``: the server itself runs processes of groups. ``who`` and what follows belong to the principal; ``groups`` are
    names of the groups that it may see, and patterns."""

    version: str
    runs: bool
    nats_connected: bool
    who: str
    role: Role
    values: bool
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HealthView:
    """``reason`` is the problem, "" without one."""

    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """``before`` is the sequence of the last entry that is known; the answer continues from there. ``refused``: list refused
    writes instead."""

    limit: int = 100
    before: int | None = None
    refused: bool = False


async def show_server(call: Call) -> Answer:
    who, parts = call.who, call.parts
    is_connected = parts.client.is_connected
    return Answer(ServerView(parts.version, parts.settings.runs, is_connected, who.name, who.role, who.values, who.groups))


async def show_health(call: Call) -> Answer:
    if call.parts.client.is_connected:
        return Answer(HealthView(True, ""))
    return Answer(HealthView(False, "NATS does not answer"), status=ProblemKind.UNAVAILABLE.status)


async def show_audit(call: Call) -> Answer:
    limit = call.query.limit
    if not 1 <= limit <= MOST_ENTRIES:
        raise Problem(ProblemKind.MALFORMED, f"limit is not from 1 to {MOST_ENTRIES}", "ask for less at once", "limit")
    part = await call.parts.audit.newest(limit, call.query.before, refused=call.query.refused)
    return Answer(replace(part, entries=tuple(each for each in part.entries if _is_told(call.who, each.entry))))


def _is_told(who: Principal, entry: AuditEntry) -> bool:
    """Returns whether the principal may see the entry. Only a principal of all groups sees an entry that belongs to no group."""
    return who.sees_all or (bool(entry.groups) and all(map(who.sees, entry.groups)))


async def log_out(call: Call) -> Answer:
    call.parts.entrance.leave(call.who)
    return Answer(ends_session=True)


def description_endpoint(others: tuple[Endpoint, ...], version: str) -> Endpoint:
    """Returns the row that describes ``others`` and itself."""

    @functools.cache
    def document() -> dict[str, Any]:
        return openapi.describe((*others, row), version)

    async def show_description(call: Call) -> Answer:
        return Answer(document())

    row = Endpoint(
        "GET", "/openapi.json", "This description of the API", Role.VIEWER, show_description, answer=Json, rows=Rows.STAY
    )
    return row


ENDPOINTS = (
    Endpoint("GET", "/", "The server, and the rights of the token", Role.VIEWER, show_server, answer=ServerView, rows=Rows.STAY),
    Endpoint("GET", "/health", "Whether the server can do its work", Role.VIEWER, show_health, answer=HealthView, rows=Rows.STAY),
    Endpoint(
        "GET",
        "/audit",
        "The entries of the audit, the newest first",
        Role.VIEWER,
        show_audit,
        answer=AuditPart,
        query=AuditQuery,
        rows=Rows.STAY,
    ),
    Endpoint("DELETE", "/session", "Log a browser out", Role.VIEWER, log_out, status=204, rows=Rows.STAY),
)
