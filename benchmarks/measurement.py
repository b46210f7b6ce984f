"""What a scenario is, and what it measures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.processes import Usage

NATIVE = "native"
"""The contestant that others are compared with: PostgreSQL's logical replication."""


@dataclass(frozen=True, slots=True)
class Options:
    """``rows`` and ``seconds`` are 0, and ``commits_per_s`` is empty, for the scenario's own size. Of a backlog ``rows`` is the
    number of changes, of whatever kind."""

    rows: int = 0
    repeat: int = 1
    commits_per_s: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def repetitions(self) -> range:
        return range(1, self.repeat + 1)


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant, once.

    Names of ``figures`` end in their unit: ``_s``, ``_ms``, ``_per_s``, ``_mb``; a ``ratio`` is a share of what native
    replication achieved in the same repetition, unless its name says of what else. ``changes`` is the work that ``usage`` was
    spent on, 0 where it was spent on none. ``samples`` are figures over time, each with ``at_s`` since the beginning.
    """

    scenario: str
    contestant: str
    repetition: int
    figures: dict[str, float]
    changes: int
    usage: dict[str, Usage] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure of a contestant should be, at the scenario's own size on a machine of two cores."""

    contestant: str
    figure: str
    limit: float
    at_least: bool

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


def at_least(contestant: str, figure: str, limit: float) -> Goal:
    return Goal(contestant, figure, limit, at_least=True)


def at_most(contestant: str, figure: str, limit: float) -> Goal:
    return Goal(contestant, figure, limit, at_least=False)


@dataclass(frozen=True, slots=True)
class Scenario:
    """``measure`` starts its own servers, lets the contestants take turns, and checks that source and target are equal after
    each; it raises ``data.DifferenceError`` when they are not. ``plotted`` are figures of one unit: bars, lines over the figure
    ``over`` (contestants that have a name before a comma in common are one line), or lines over time of the samples whose names
    end so. ``is_long``: measured only when it is named."""

    name: str
    title: str
    goals: tuple[Goal, ...]
    plotted: tuple[str, ...]
    measure: Callable[[Options], Iterator[Run]]
    over: str = ""
    is_long: bool = False

    @property
    def about(self) -> str:
        """What is measured, and how: the docstring of its module."""
        return inspect.getdoc(inspect.getmodule(self.measure)) or ""
