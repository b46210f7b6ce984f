"""The answer to a failed request: a problem in the form of RFC 9457, with an error's fact and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pgsluice.shared.errors import PgsluiceError, TransientError, UsageError

MEDIA_TYPE = "application/problem+json"


class ProblemKind(Enum):
    """The kinds of problems, each with its HTTP status and its title, which never change."""

    UNAUTHENTICATED = 401, "no valid token or session"
    FORBIDDEN = 403, "this role may not do it"
    FOREIGN = 403, "the request comes from elsewhere"
    NOT_FOUND = 404, "there is no such thing"
    METHOD = 405, "this cannot be done with it"
    CONFLICT = 409, "it cannot be done as things are"
    STALE = 412, "another client has changed it"
    TOO_LARGE = 413, "the request is too large"
    MEDIA = 415, "the request is in a form that is not read"
    MALFORMED = 422, "the request is not valid"
    REVISION_WANTED = 428, "the request must name the revision that it replaces"
    TOO_MANY = 429, "too many requests"
    DEFECT = 500, "an unexpected error"
    UNAVAILABLE = 503, "it cannot be done for now"

    def __init__(self, status: int, title: str) -> None:
        self.status = status
        self.title = title


@dataclass(frozen=True, slots=True)
class ProblemContent:
    """The answer's content. ``detail`` is the fact, ``remedy`` what the reader can do, ``where`` the part of the request that it
    is about ("" for all of it)."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str = ""
    where: str = ""


class Problem(Exception):  # noqa: N818  it is an answer
    """The problem of a request, raised by the code that answers it. Holds no secret and no row value, as every error.
    ``retry_after_s`` is 0 where the time of a retry is unknown."""

    def __init__(self, kind: ProblemKind, detail: str, remedy: str = "", where: str = "", *, retry_after_s: int = 0) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.retry_after_s = retry_after_s or (1 if kind is ProblemKind.UNAVAILABLE else 0)
        self.content = ProblemContent(f"urn:pgsluice:{_slug(kind)}", kind.title, kind.status, detail, remedy, where)


def problem_of(error: PgsluiceError) -> Problem:
    """Returns the problem for a PgsluiceError."""
    match error:
        case TransientError():
            kind = ProblemKind.UNAVAILABLE
        case UsageError():
            kind = ProblemKind.MALFORMED
        case _:
            kind = ProblemKind.CONFLICT
    return Problem(kind, error.fact, error.remedy)


def _slug(kind: ProblemKind) -> str:
    return kind.name.lower().replace("_", "-")
