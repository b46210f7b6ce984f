"""The principal of a request: by its bearer token, or by the session of a browser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pgsluice.console.server.access.origin import is_loopback
from pgsluice.console.server.access.principal import Principal, Role
from pgsluice.console.server.access.sessions import SESSION_S, BrowserSession, Links, Sessions
from pgsluice.console.server.access.tokens import KnownToken, Tokens
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.shared import telemetry
from pgsluice.shared.config.server_settings import TokenSettings
from pgsluice.shared.process.private_file import state_home, write_private

SESSION_COOKIE = "pgsluice-session"
CSRF_COOKIE = "pgsluice-csrf"
CSRF_HEADER = "x-pgsluice-csrf"
_OF_THIS_HOST = "__Host-"
"""Prefix of names of cookies that browsers take over https alone, and from no other host (RFC 6265bis, 4.1.3.2)."""
FIRST_TOKEN = "admin"  # noqa: S105  its name

log = telemetry.logger(__name__)


def state_directory(settings: TokenSettings) -> Path:
    return Path(settings.state_directory) if settings.state_directory else state_home() / "server"


@dataclass(frozen=True, slots=True)
class Entrance:
    """The access checks of a server that keeps its tokens, its key and its links in ``state_directory``. ``is_secure``:
    browsers reach it by https."""

    state_directory: Path
    tokens: Tokens
    sessions: Sessions
    links: Links
    is_secure: bool

    @classmethod
    def of(cls, state_directory: Path, *, is_secure: bool) -> Entrance:
        return cls(
            state_directory,
            Tokens(state_directory / "tokens.json"),
            Sessions(state_directory / "session-key", state_directory / "ended-sessions"),
            Links(state_directory / "links"),
            is_secure,
        )

    def own_names(self, listen_host: str) -> frozenset[str]:
        """Returns the names of the server that outsiders must not know."""
        return frozenset({self.sessions.host_name()} if is_loopback(listen_host) and not self.is_secure else ())

    def make_first_token(self) -> Path | None:
        """Creates the first token if there is none; returns the path of its text, else None."""
        if self.tokens.known():
            return None
        path = self.state_directory / "token"
        write_private(path, self.tokens.create(FIRST_TOKEN, Role.ADMIN, values=True).encode() + b"\n")
        return path

    def link_of(self, address: str, token: KnownToken) -> str:
        """Makes a link that lets a browser in once, as the holder of that token, at the server's address.

        Cookies go to every port of the host that set them. So a link to this machine has a name of the server's own, which
        browsers take for the machine itself (RFC 6761, 6.3), and under which browsers open no page of another server."""
        parts = urlsplit(address)
        if self.own_names(parts.hostname or ""):
            address = f"{parts.scheme}://{self.sessions.host_name()}:{parts.port}"
        return f"{address}/login?code={self.links.make(token.id)}"

    def principal(self, request: Request) -> Principal:
        """Raises Problem (401) without a valid principal."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            found = self.tokens.principal(token.strip()) if scheme.lower() == "bearer" else None
        else:
            session = self._session(request)
            token_of_session = None if session is None else self.tokens.with_id(session.token)
            found = None if session is None or token_of_session is None else token_of_session.principal(session.id)
        if found is None:
            raise Problem(
                ProblemKind.UNAUTHENTICATED,
                "no token or session that is valid comes with the request",
                "send 'Authorization: Bearer …' ('pgsluice token create'), or open the link that 'pgsluice token link' prints",
            )
        return found

    def is_good(self, who: Principal) -> bool:
        """Returns whether the token of the principal still exists, and its session has not ended."""
        return self.tokens.with_id(who.token) is not None and not (who.session and self.sessions.has_ended(who.session))

    def check_intention(self, request: Request) -> None:
        """Raises Problem (403) for a browser's write that does not prove to come from the server's page."""
        session, given = self._session(request), request.headers.get(CSRF_HEADER, "")
        if session is None or given != session.csrf:
            raise Problem(ProblemKind.FOREIGN, f"the header {CSRF_HEADER} does not belong to this session", "load the page again")

    def enter(self, request: Request) -> Response:
        """Exchanges a link's code for a session. Errors of the code are not distinguished."""
        token = self.links.take(request.query_params.get("code", ""))
        if token is None or self.tokens.with_id(token) is None:
            log.warning("a client opened a link that is not valid", client=request.client.host if request.client else "")
            raise Problem(
                ProblemKind.UNAUTHENTICATED, "this link is not valid, or no longer", "'pgsluice token link' prints another one"
            )
        cookie, session = self.sessions.begin(token)
        response = RedirectResponse("/", status_code=303)
        self._set_cookies(response, cookie, session.csrf, int(SESSION_S))
        return response

    def leave(self, who: Principal) -> None:
        """Ends the session of the browser that asks. Raises Problem for a program: it has no session."""
        if not who.session:
            raise Problem(ProblemKind.CONFLICT, "the request has a token and no session", "'pgsluice token revoke' ends a token")
        self.sessions.end(who.session)

    def remove_cookies(self, response: Response) -> None:
        self._set_cookies(response, "", "", 0)

    def _set_cookies(self, response: Response, session: str, csrf: str, lasts_s: int) -> None:
        for name, text, is_hidden in ((SESSION_COOKIE, session, True), (CSRF_COOKIE, csrf, False)):
            response.set_cookie(
                self._cookie(name),
                text,
                max_age=lasts_s,
                secure=self.is_secure,
                httponly=is_hidden,
                samesite="strict",
                path="/",
            )

    def _session(self, request: Request) -> BrowserSession | None:
        return self.sessions.find(request.cookies.get(self._cookie(SESSION_COOKIE), ""))

    def _cookie(self, name: str) -> str:
        return f"{_OF_THIS_HOST}{name}" if self.is_secure else name
