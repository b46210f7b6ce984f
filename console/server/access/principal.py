"""Who asks, and what they may."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class Role(StrEnum):
    """Each may what the one before it may: look; pause, resume, replay; change what groups are, discard, remove."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        return _rank(self) >= _rank(other)


def _rank(role: Role) -> int:
    match role:
        case Role.VIEWER:
            return 0
        case Role.OPERATOR:
            return 1
        case Role.ADMIN:
            return 2
        case unreachable:
            assert_never(unreachable)


@dataclass(frozen=True, slots=True)
class Principal:
    """``name`` is the token's, ``token`` says which one of that name. ``values``: may see row values, whatever the role.
    ``by_cookie``: a browser asks, so what it writes has to prove that it comes from our page."""

    name: str
    role: Role
    token: str
    values: bool = False
    by_cookie: bool = False
