"""A target: bytes go in, and nothing comes out that its readers do not promise."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar, cast

CORPUS = Path(__file__).parent / "corpus"

LONGEST_S = 5.0
"""Seconds for one input. A slower one freezes the process that reads it."""

TARGETS = (
    "pgoutput",
    "walsender",
    "bodies",
    "headers",
    "definitions",
    "records",
    "configuration",
    "rules",
    "pipelines",
    "addresses",
    "patterns",
)
"""Modules of ``targets/``."""

T = TypeVar("T")


class Target(Protocol):
    """A module of ``targets/``."""

    def feed(self, data: bytes) -> None:
        """Raises for a finding alone."""

    def seeds(self) -> Iterable[bytes]:
        """Inputs that readers take, to begin with."""


def load(name: str) -> Target:
    return cast("Target", importlib.import_module(f"tests.fuzz.targets.{name}"))


def inputs(name: str) -> list[bytes]:
    """Those that are kept of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def read(reader: Callable[[], T], *refusals: type[Exception]) -> T | None:
    """Returns what ``reader`` makes of its input; None when it refuses the input by one of ``refusals``, its contract."""
    try:
        return reader()
    except refusals:
        return None


def is_same(value: T, again: T) -> None:
    """Raises unless a value that was encoded and decoded is what it was. Neither is shown: a finding's file holds the input."""
    if value != again:
        raise AssertionError(f"a {type(value).__name__} is another one after it was encoded and decoded")
