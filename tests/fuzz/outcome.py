"""The outcome of a run of a target, its limits, and the place of its findings."""

from __future__ import annotations

from dataclasses import dataclass

from tests.source_code import REPOSITORY

BUILD = REPOSITORY / "build" / "fuzz"

MOST_MIB = 1024
"""MiB of memory for one process. What was imported takes a quarter of it."""


@dataclass(slots=True)
class Outcome:
    executions: int = 0
    seconds: float = 0.0
    findings: int = 0

    def __str__(self) -> str:
        return f"{self.executions:>10,} executions in {self.seconds:4.0f} s, {self.findings} findings"
