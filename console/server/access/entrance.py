"""Who a request is of: by its bearer token, or by the session of a browser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pgsluice.console.server.access.principal import Principal, Role
from pgsluice.console.server.access.sessions import SESSION_S, Links, Session, Sessions
from pgsluice.console.server.access.tokens import KnownToken, Tokens
from pgsluice.console.server.problem import Kind, Problem
from pgsluice.shared import telemetry
from pgsluice.shared.config.server_settings import TokenSettings
from pgsluice.shared.process.private_file import state_home, write_private

SESSION_COOKIE = "pgsluice-session"
CSRF_COOKIE = "pgsluice-csrf"
CSRF_HEADER = "x-pgsluice-csrf"
FIRST_TOKEN = "admin"  # noqa: S105  its name

log = telemetry.logger(__name__)


def state_directory(settings: TokenSettings) -> Path:
    return Path(settings.state_directory) if settings.state_directory else state_home() / "server"


@dataclass(frozen=True, slots=True)
class Entrance:
    """Of a server that keeps its tokens, its key and its links in ``state_directory``."""

    state_directory: Path
    tokens: Tokens
    sessions: Sessions
    links: Links

    @classmethod
    def of(cls, state_directory: Path) -> Entrance:
        return cls(
            state_directory,
            Tokens(state_directory / "tokens.json"),
            Sessions(state_directory / "session-key"),
            Links(state_directory / "links"),
        )

    def make_first_token(self) -> Path | None:
        """Where the text of the first token is, if there was none before and so one was made."""
        if self.tokens.known():
            return None
        path = self.state_directory / "token"
        write_private(path, self.tokens.create(FIRST_TOKEN, Role.ADMIN, values=True).encode() + b"\n")
        return path

    def link_of(self, address: str, token: KnownToken) -> str:
        """A link that lets a browser in once, as that token, at the server's address."""
        return f"{address}/login?code={self.links.make(token.id)}"

    def principal(self, request: Request) -> Principal:
        """Raises Problem (401) when nobody is named who may come in."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            found = self.tokens.principal(token.strip()) if scheme.lower() == "bearer" else None
        else:
            session = self._session(request)
            token_of_session = None if session is None else self.tokens.with_id(session.token)
            found = None if token_of_session is None else token_of_session.principal(by_cookie=True)
        if found is None:
            raise Problem(
                Kind.UNAUTHENTICATED,
                "no token or session that is valid comes with the request",
                "send 'Authorization: Bearer …' ('pgsluice token create'), or open the link that 'pgsluice token link' prints",
            )
        return found

    def is_good(self, who: Principal) -> bool:
        """Whether the token that somebody came in with is still there."""
        return self.tokens.with_id(who.token) is not None

    def check_intention(self, request: Request) -> None:
        """Raises Problem (403) for a browser's write that does not prove to come from our page."""
        session, given = self._session(request), request.headers.get(CSRF_HEADER, "")
        if session is None or given != session.csrf:
            raise Problem(Kind.FOREIGN, f"the header {CSRF_HEADER} does not belong to this session", "load the page again")

    def enter(self, request: Request, *, is_secure: bool) -> Response:
        """Exchanges a link's code for a session. What is wrong with the code is not told apart."""
        token = self.links.take(request.query_params.get("code", ""))
        if token is None or self.tokens.with_id(token) is None:
            log.warning("somebody opened a link that is not valid", client=request.client.host if request.client else "")
            raise Problem(
                Kind.UNAUTHENTICATED, "this link is not valid, or no longer", "'pgsluice token link' prints another one"
            )
        cookie, session = self.sessions.begin(token)
        response = RedirectResponse("/", status_code=303)
        for name, text, is_hidden in ((SESSION_COOKIE, cookie, True), (CSRF_COOKIE, session.csrf, False)):
            response.set_cookie(
                name, text, max_age=int(SESSION_S), secure=is_secure, httponly=is_hidden, samesite="strict", path="/"
            )
        return response

    def _session(self, request: Request) -> Session | None:
        return self.sessions.find(request.cookies.get(SESSION_COOKIE, ""))
