"""Principals of requests, and their rights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import assert_never

from pgsluice.console.server.problem import Problem, ProblemKind

ALL_GROUPS = ("*",)


class Role(StrEnum):
    """Roles, each with the rights of the one before: read; pause, resume, replay; change documents, discard, remove."""

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
    """``name`` is the token's name, ``token`` distinguishes tokens of one name. ``values``: may see row values,
    whatever the role. ``groups`` are names of groups, and patterns with ``*``, that the principal may see. ``session``
    is the browser's, "" for a program."""

    name: str
    role: Role
    token: str
    values: bool = False
    groups: tuple[str, ...] = ALL_GROUPS
    session: str = ""

    @property
    def sees_all(self) -> bool:
        return ALL_GROUPS[0] in self.groups

    def sees(self, group: str) -> bool:
        return any(fnmatchcase(group, pattern) for pattern in self.groups)

    def check_group(self, group: str) -> None:
        """Raises Problem for a group that the principal may not see, whether a group of that name exists or not."""
        if not self.sees(group):
            raise Problem(
                ProblemKind.FORBIDDEN,
                f"'{self.name}' is for the groups {', '.join(self.groups)} only",
                "use a token that was created for this group",
            )
