"""Answers requests: the checks that every endpoint has in common, in one sequence, and the page's files.

1. It is meant for this server, and no other site's page sends it (``access.origin``).
2. It names its principal (``access.entrance``), who has not asked for too much (``access.request_rates``) and may do
   that.
3. Its path, query and body match the endpoint (``typed_json``).
4. It names the revision that it replaces, where one is required; a request with a known key gets the earlier answer.
5. The endpoint does it, when the audit can take an entry. The entry is in the audit before the answer is sent.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgsluice.console.server import problem, typed_json
from pgsluice.console.server.access.principal import Principal
from pgsluice.console.server.audit import AuditEntry, now, plain_text
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint
from pgsluice.console.server.live.event_stream import EventStream
from pgsluice.console.server.parts import ServerParts
from pgsluice.console.server.problem import Problem, ProblemKind, problem_of
from pgsluice.console.server.repeated_requests import RequestKey, StoredAnswer
from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.process.defect import unexpected

MOST_BODY_BYTES = 1024 * 1024
MOST_KEY_LENGTH = 200
MOST_REASON_LENGTH = 500
MOST_TARGET_LENGTH = 500

_ETAG = re.compile(r'(?:W/)?"(\d{1,18})"')
_PAGE = "pgsluice.console.server", "page"

_SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

log = telemetry.logger(__name__)


def make_application(parts: ServerParts, endpoints: Iterable[Endpoint]) -> Starlette:
    """Answers requests with ``parts``, which have begun."""
    routes: list[BaseRoute] = [_route(path, group, parts) for path, group in _by_path(endpoints).items()]
    routes += [
        Route("/login", _entering(parts), methods=["GET"]),
        Mount("/", app=StaticFiles(packages=[_PAGE], html=True)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_EveryRequest, parts=parts)],
        exception_handlers={
            Problem: _answer_problem,
            PgsluiceError: _answer_error,
            HTTPException: _answer_http,
            ClientDisconnect: _answer_nobody,
            500: _answer_defect,
        },
    )


def _by_path(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Endpoint]]:
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(PREFIX + endpoint.path, {})[endpoint.verb] = endpoint
    return found


def _route(path: str, by_verb: dict[str, Endpoint], parts: ServerParts) -> Route:
    async def answer(request: Request) -> Response:
        return await _Dispatch(by_verb["GET" if request.method == "HEAD" else request.method], parts, request).answer()

    return Route(path, answer, methods=list(by_verb))


def _entering(parts: ServerParts) -> Callable[[Request], Awaitable[Response]]:
    async def enter(request: Request) -> Response:
        return parts.entrance.enter(request)

    return enter


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """One request to one endpoint."""

    endpoint: Endpoint
    parts: ServerParts
    request: Request

    async def answer(self) -> Response:
        who = self.parts.entrance.principal(self.request)
        self.parts.rates.take(who)
        try:
            self._check_rights(who)
            body = await self._read_body()
            self.parts.rates.charge(who, body_bytes=len(body))
            call = await self._call(who, body)
            self._check_values(who, call.body)
            key = self._key(who, body)
        except Problem as refused:
            await self._note(who, Answer(), refused)
            raise
        if key is None:
            return await self._streamed_or_stored(call)
        stored = await self.parts.repeated.once(key, lambda: self._carried_out(call))
        return _response(stored, self.endpoint.media_type)

    def _check_rights(self, who: Principal) -> None:
        endpoint = self.endpoint
        if endpoint.writes and who.session:
            self.parts.entrance.check_intention(self.request)
        if not who.role.includes(endpoint.role):
            raise Problem(
                ProblemKind.FORBIDDEN,
                f"'{who.name}' is {who.role.value}; this is for {endpoint.role.value}",
                "use a token of that role",
            )
        group = self.request.path_params.get("group")
        if group is not None:
            who.check_group(group)
        if not callable(endpoint.rows):
            self._check_values(who, None)

    def _check_values(self, who: Principal, body: object) -> None:
        if not who.values and self.endpoint.wants_values(body):
            raise Problem(
                ProblemKind.FORBIDDEN,
                f"'{who.name}' may not see row values, nor have them sent anywhere",
                "use a token that was created with --values",
            )

    async def _read_body(self) -> bytes:
        """Raises Problem for a body that is too large; returns b"" if the endpoint takes none."""
        if self.endpoint.body is None:
            return b""
        content = bytearray()
        async for chunk in self.request.stream():
            content += chunk
            if len(content) > MOST_BODY_BYTES:
                raise Problem(ProblemKind.TOO_LARGE, f"the body has more than {MOST_BODY_BYTES} bytes", "send less at once")
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(
                ProblemKind.MEDIA,
                "the body is not of the type application/json",
                "set Content-Type: application/json, and send JSON",
            )
        return bytes(content)

    async def _call(self, who: Principal, body: bytes) -> Call:
        endpoint, path = self.endpoint, dict(self.request.path_params)
        parameters = dict(self.request.query_params)
        if endpoint.query is None and parameters:
            raise Problem(ProblemKind.MALFORMED, f"the parameter {min(parameters)} is not known", "leave it out", min(parameters))
        query = None if endpoint.query is None else typed_json.parse_query(endpoint.query, parameters)
        content = None
        if endpoint.body is not None:
            content = await self.parts.parsed(who, lambda kind: typed_json.parse(kind, _json(body)), endpoint.body)
        if len(getattr(content, "reason", "")) > MOST_REASON_LENGTH:
            raise Problem(ProblemKind.MALFORMED, f"reason has more than {MOST_REASON_LENGTH} characters", "shorten it", "reason")
        return Call(self.parts, who, path, query, content, self._revision(), self._request_id(who))

    def _revision(self) -> int | Literal["*"] | None:
        given = self.request.headers.get("if-match", "").strip() if self.endpoint.names_revision else ""
        if not given:
            return None
        if given == "*":
            return "*"
        match = _ETAG.fullmatch(given)
        if match is None:
            raise Problem(
                ProblemKind.STALE,
                "If-Match is not an ETag of this server",
                "send the ETag of the revision that you have read",
                "If-Match",
            )
        return int(match[1])

    def _request_id(self, who: Principal) -> str:
        key = self._given_key()
        return RequestKey(who.name, key, "").id if key else secrets.token_hex(16)

    def _given_key(self) -> str:
        key = self.request.headers.get("idempotency-key", "") if self.endpoint.takes_key else ""
        if len(key) > MOST_KEY_LENGTH:
            raise Problem(
                ProblemKind.MALFORMED,
                f"Idempotency-Key has more than {MOST_KEY_LENGTH} characters",
                "use a UUID",
                "Idempotency-Key",
            )
        return key

    def _key(self, who: Principal, body: bytes) -> RequestKey | None:
        key = self._given_key()
        if not key:
            return None
        content = b"\0".join(
            (self.request.method.encode(), str(self.request.url.path).encode(), self.request.url.query.encode(), body)
        )
        return RequestKey(who.name, key, hashlib.sha256(content).hexdigest())

    async def _streamed_or_stored(self, call: Call) -> Response:
        answer = await self._done(call)
        if isinstance(answer.content, EventStream):
            return _EventResponse(answer.content)
        response = _response(_stored(self.endpoint, answer), self.endpoint.media_type)
        if answer.ends_session:
            self.parts.entrance.remove_cookies(response)
        return response

    async def _carried_out(self, call: Call) -> StoredAnswer:
        return _stored(self.endpoint, await self._done(call))

    async def _done(self, call: Call) -> Answer:
        try:
            if self.endpoint.writes:
                await self.parts.audit.ensure(call.who.token)
            answer = await self.endpoint.handler(call)
        except (Problem, PgsluiceError) as error:
            refusal = problem_of(error) if isinstance(error, PgsluiceError) else error
            await self._note(call.who, Answer(), refusal)
            raise refusal from None
        await self._note(call.who, answer, None, getattr(call.body, "reason", ""))
        return answer

    async def _note(self, who: Principal, answer: Answer, refused: Problem | None, reason: str = "") -> None:
        if not self.endpoint.writes:
            return
        client, path, audit = self.request.client, self.request.path_params, self.parts.audit
        entry = AuditEntry(
            at=now(),
            who=who.name,
            role=who.role.value,
            client=client.host if client else "",
            action=self.endpoint.name,
            target=plain_text(answer.target or "/".join(path.values()), MOST_TARGET_LENGTH),
            outcome="done" if refused is None else refused.content.title,
            reason=plain_text(reason, MOST_REASON_LENGTH),
            revision_before=answer.revision_before,
            revision_after=answer.revision,
            groups=(path["group"],) if "group" in path else answer.groups,
        )
        await (audit.add(who.token, entry) if refused is None else audit.count_refused(who.token, entry))


class _EventResponse(StreamingResponse):
    """Ends its stream however it ends itself, also before anything was sent."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__(stream.events(), media_type="text/event-stream", headers=_uncached())
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


def _stored(endpoint: Endpoint, answer: Answer) -> StoredAnswer:
    if endpoint.media_type == "application/json":
        body = "" if answer.content is None else orjson.dumps(answer.content).decode()
    else:
        body = str(answer.content)
    etag = "" if answer.revision is None else f'"{answer.revision}"'
    return StoredAnswer(answer.status or endpoint.status, body, etag, answer.location)


def _response(stored: StoredAnswer, media_type: str) -> Response:
    headers = _uncached()
    if stored.etag:
        headers["etag"] = stored.etag
    if stored.location:
        headers["location"] = quote(stored.location)  # a pipeline of a file may have any name
    return Response(stored.body, stored.status, headers, media_type if stored.body else None)


def _uncached() -> dict[str, str]:
    return {"cache-control": "no-store"}


def _json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Problem(ProblemKind.MALFORMED, "the body is not JSON", "send JSON in UTF-8") from None


class _EveryRequest:
    """Refuses requests meant for others, and adds browsers' headers to every answer."""

    def __init__(self, app: ASGIApp, parts: ServerParts) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in _headers_for(message).items())]
            await send(message)

        headers = Request(scope).headers
        if self._parts.proxies is not None and scope["client"]:
            scope["client"] = self._parts.proxies.client(scope["client"][0], headers.getlist("x-forwarded-for")), 0
        try:
            self._parts.origin.check(headers.get("host", ""), headers.get("origin", ""), headers.get("sec-fetch-site", ""))
        except Problem as refused:
            await _problem_response(refused)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def _headers_for(message: Message) -> dict[str, str]:
    """The page's files are asked for again each time, by their ETags: modules of two versions must not meet."""
    names = {name for name, _ in message["headers"]}
    return _SECURITY_HEADERS if b"cache-control" in names else _SECURITY_HEADERS | {"cache-control": "no-cache"}


def _problem_response(refused: Problem) -> Response:
    headers = _uncached()
    if refused.kind is ProblemKind.UNAUTHENTICATED:
        headers["www-authenticate"] = 'Bearer realm="pgsluice"'
    if refused.retry_after_s:
        headers["retry-after"] = str(refused.retry_after_s)
    return Response(orjson.dumps(refused.content), refused.content.status, headers, problem.MEDIA_TYPE)


async def _answer_problem(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Problem)
    return _problem_response(refused)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PgsluiceError)
    return _problem_response(problem_of(error))


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answers for the router or the page's files: not found, or another verb."""
    assert isinstance(error, HTTPException)
    kind = ProblemKind.METHOD if error.status_code == ProblemKind.METHOD.status else ProblemKind.NOT_FOUND
    response = _problem_response(Problem(kind, f"there is no {request.method} {request.url.path}", f"see {PREFIX}/openapi.json"))
    response.headers.update(error.headers or {})
    return response


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """Answers for the client that closed the connection before it had sent its whole request, or took too long to send it."""
    return Response(status_code=400)


async def _answer_defect(request: Request, error: Exception) -> Response:
    """Answers a defect. Its text may quote a row, so only its place is logged, and nothing is sent."""
    log.error("a request ended by a defect", path=request.url.path, reason=str(unexpected(error, "a request")))
    return _problem_response(Problem(ProblemKind.DEFECT, "an unexpected error", "see the server's log"))
