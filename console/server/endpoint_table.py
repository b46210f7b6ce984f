"""The type of an endpoint of the API: one row, from which the route, the checks and the description are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal

from pgsluice.console.server.access.principal import Principal, Role

if TYPE_CHECKING:
    from pgsluice.console.server.parts import ServerParts

PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked: who asks may do it, and ``query`` and ``body`` are of the endpoint's types.

    ``revision`` is what If-Match names, None without. ``request_id`` is the same whenever a request comes again under
    its Idempotency-Key, so created objects can carry it; a request without a key gets a new one.
    """

    parts: ServerParts
    who: Principal
    path: Mapping[str, str]
    query: Any
    body: Any
    revision: int | Literal["*"] | None
    request_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """``content`` is of the endpoint's ``answer`` type. ``revision`` becomes the ETag, ``location`` is where to
    continue.

    ``target``, ``groups`` and the revisions are the audit's facts about a write; the group in the path is known
    already. ``ends_session``: the browser forgets the session that it came with.
    """

    content: object = None
    status: int | None = None
    revision: int | None = None
    location: str = ""
    target: str = ""
    revision_before: int | None = None
    groups: tuple[str, ...] = ()
    ends_session: bool = False


class Rows(Enum):
    """The way of row values in a request. A principal that is shown them, or has them sent, needs the right to see
    them."""

    STAY = auto()
    """The values go where they went before, if anywhere."""
    ANSWERED = auto()
    SENT = auto()
    """The request chooses where to send them, or makes other values sent than before."""


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``path`` is below PREFIX, with names in braces. ``status`` is the status of a success.

    ``rows`` is where row values go, or how the body decides that. An endpoint without it requires the right to them.
    ``names_revision``: If-Match is read, and wanted where something is replaced. ``takes_key``: an Idempotency-Key is
    obeyed.
    """

    verb: str
    path: str
    summary: str
    role: Role
    handler: Handler
    answer: Any = None
    status: int = 200
    query: Any = None
    body: Any = None
    rows: Rows | Callable[[Any], Rows] | None = None
    names_revision: bool = False
    takes_key: bool = False
    media_type: str = field(default="application/json")

    @property
    def writes(self) -> bool:
        return self.verb != "GET"

    def wants_values(self, body: object) -> bool:
        """Returns whether the sender of ``body`` needs the right to row values."""
        rows = self.rows(body) if callable(self.rows) else self.rows
        return rows is not Rows.STAY

    @property
    def name(self) -> str:
        """The operation's name, for the description and the audit."""
        words = [word for word in self.path.replace("{", "").replace("}", "").split("/") if word]
        return "_".join([self.verb.lower(), *words]).replace(".", "_").replace("-", "_") if words else "get_api"
