"""Running both roles to their end, one after the other: what is in the source now is at the sink afterwards."""

from __future__ import annotations

from typing import Any

from tests.servers import PgsluiceProcess

REPLICATE_DEADLINE_S = 150.0
APPLY_DEADLINE_S = 150.0


class Outcome:
    """How a process ended: its exit code, its log and what it printed."""

    def __init__(self, process: PgsluiceProcess, deadline_s: float) -> None:
        with process:
            try:
                self.code = process.wait(deadline_s)
            finally:
                self.log = process.log()
                print(self.log)
            self.stdout = process.stdout()


def replicate(keys: dict[str, Any], *flags: str) -> Outcome:
    """``pgsluice replicator --until-lsn current``."""
    return Outcome(PgsluiceProcess("replicator", "--until-lsn", "current", *flags, config=keys), REPLICATE_DEADLINE_S)


def apply(keys: dict[str, Any], sink: str = "postgres", *flags: str) -> Outcome:
    """``pgsluice worker <sink> --until-sequence current``."""
    return Outcome(PgsluiceProcess("worker", sink, "--until-sequence", "current", *flags, config=keys), APPLY_DEADLINE_S)


def succeed(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome.log
    return outcome
