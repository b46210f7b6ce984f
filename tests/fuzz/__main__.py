"""``python -m tests.fuzz [TARGET…] --seconds 600``: runs targets one after the other, and says what was found.

Ends with 1 when there are findings. Their inputs lie in ``build/fuzz/findings``, what reached new lines in ``build/fuzz/corpus``,
where the next run goes on.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.outcome import Outcome
from tests.fuzz.run_target import run_target
from tests.fuzz.target import TARGETS

_API = "api"
"""The target that asks a server. It takes two roles, each for the whole time."""


def _run(name: str, seconds: int) -> dict[str, Outcome]:
    if name != _API:
        return {name: run_target(name, seconds)}
    from tests.fuzz.api_requests import run_api  # the others need neither a server nor what makes up requests

    return {f"{_API} as {role}": outcome for role, outcome in run_api(seconds).items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Runs fuzz targets, one after the other.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join([*TARGETS, _API])}; all of them without any")
    parser.add_argument("--seconds", type=int, default=600, help="for each")
    given = parser.parse_args()
    outcomes: dict[str, Outcome] = {}
    for name in given.targets or [*TARGETS, _API]:
        found = _run(name, given.seconds)
        for target, outcome in found.items():
            print(f"{target:<16} {outcome}", flush=True)
        outcomes |= found
    return 1 if any(outcome.findings for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
