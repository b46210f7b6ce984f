"""Messages of a group's stream, the trace of a row, and the effect of rules on changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from pgsluice.console.inspect.messages import MessagesPage, StreamPlace, read_messages
from pgsluice.console.inspect.row_trace import SEARCHED_MESSAGES, RowKey, Trace, trace_row
from pgsluice.console.inspect.rules_trial import BenchResult, BenchTrial, ChangesTrial, RuledChanges
from pgsluice.console.inspect.shown import parse_pattern, parse_place
from pgsluice.console.inspect.trial_process import run_trial
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import view_of
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.typed_json import Json, parse
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.published_tables import load_tables
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.table import Table, TablePattern

MOST_CHANGES = 1000
MOST_SEARCHED = 200_000
MOST_SAMPLE = 200
MOST_CHARACTERS = 64 * 1024
"""The most characters of the rules, and of the routes."""


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """``start`` is a sequence or a time (RFC 3339), "" for the newest; ``table`` a name or a pattern, "" for any."""

    start: str = ""
    table: str = ""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """``key`` are the row's values by column, texts as PostgreSQL writes them. ``rules`` and ``routing`` are the texts
    of the workers' files, "" without: they determine dropped changes. ``messages`` is how far to search back."""

    table: str
    key: Mapping[str, str]
    rules: str = ""
    routing: str = ""
    messages: int = SEARCHED_MESSAGES


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Rules and routes (their files' texts) to try on: ``lines``, changes as JSON lines, or the newest ``sample``
    changes of a group's tables that ``table`` matches."""

    rules: str = ""
    routing: str = ""
    lines: tuple[Json, ...] = ()
    group: str = ""
    table: str = ""
    sample: int = 20


async def show_messages(call: Call) -> Answer:
    query = call.query
    limit = _within(query.limit, MOST_CHANGES, "limit")
    place, pattern = parse_place(query.start), parse_pattern(query.table) if query.table else None
    view = await view_of(call)
    return Answer(await read_messages(call.parts.client, GroupNames(view.group), place, pattern, limit))


async def trace(call: Call) -> Answer:
    request, view = call.body, await view_of(call)
    if not request.key:
        raise Problem(ProblemKind.MALFORMED, "key names no column", 'give the row\'s key, like {"id": "7"}', "key")
    most = _within(request.messages, MOST_SEARCHED, "messages")
    _check_texts(request)
    names = GroupNames(view.group)
    tables = tuple(await load_tables(StateBucket(call.parts.client, names)) or ())

    async def try_rules(messages: Sequence[MessageChanges]) -> RuledChanges:
        if not (request.rules or request.routing):
            return RuledChanges("", ())
        tried = await run_trial(ChangesTrial(request.rules, request.routing, tables, tuple(messages)))
        return parse(RuledChanges, orjson.loads(tried))

    row = RowKey(parse_pattern(request.table), request.key)
    async with call.parts.trying.of(call.who.token):
        found = await trace_row(call.parts.client, names, row, try_rules, most)
    return Answer(found, target=f"{view.group} {request.table}")


async def bench(call: Call) -> Answer:
    request = call.body
    _check_texts(request)
    _within(max(1, len(request.lines)), MOST_CHANGES, "lines")
    lines, tables = tuple(map(orjson.dumps, request.lines)), tuple[Table, ...]()
    if request.group:
        call.who.check_group(request.group)
        names = GroupNames(request.group)
        tables = tuple(await load_tables(StateBucket(call.parts.client, names)) or ())
        lines = lines or tuple(await _sample(call, names, request))
    async with call.parts.trying.of(call.who.token):
        result = orjson.Fragment(await run_trial(BenchTrial(request.rules, request.routing, tables, lines)))
    return Answer(result, groups=(request.group,) if request.group else ())


def _check_texts(request: TraceRequest | BenchRequest) -> None:
    for name, text in (("rules", request.rules), ("routing", request.routing)):
        if len(text) > MOST_CHARACTERS:
            raise Problem(ProblemKind.MALFORMED, f"{name} have more than {MOST_CHARACTERS} characters", "try fewer at once", name)


async def _sample(call: Call, names: GroupNames, request: BenchRequest) -> list[bytes]:
    """Returns the newest changes, as lines."""
    most = _within(request.sample, MOST_SAMPLE, "sample")
    pattern: TablePattern | None = parse_pattern(request.table) if request.table else None
    page = await read_messages(call.parts.client, names, StreamPlace(), pattern, most)
    return [orjson.dumps(change) for message in page.messages for change in message.changes][-most:]


def _within(number: int, most: int, name: str) -> int:
    if not 1 <= number <= most:
        raise Problem(ProblemKind.MALFORMED, f"{name} is not from 1 to {most}", "ask for less at once", name)
    return number


ENDPOINTS = (
    Endpoint(
        "GET",
        "/groups/{group}/messages",
        "List the messages of the change stream",
        Role.VIEWER,
        show_messages,
        answer=MessagesPage,
        query=MessageQuery,
        rows=Rows.ANSWERED,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/trace",
        "Trace a row: each change of it, and its result at each worker",
        Role.VIEWER,
        trace,
        answer=Trace,
        body=TraceRequest,
        rows=Rows.ANSWERED,
    ),
    Endpoint(
        "POST",
        "/rules/test",
        "Test rules and routes on changes, step by step",
        Role.VIEWER,
        bench,
        answer=BenchResult,
        body=BenchRequest,
        rows=Rows.ANSWERED,
    ),
)
