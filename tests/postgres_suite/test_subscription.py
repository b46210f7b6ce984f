"""PostgreSQL's tests of subscriptions, with groups in their place: the files are run by Perl as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.postgres_suite.known import Known, known
from tests.postgres_suite.sources import VERSIONS, tests_of
from tests.postgres_suite.tap_harness import TapHarness
from tests.servers import NatsServer

pytestmark = [pytest.mark.postgres_suite, pytest.mark.timeout(4 * 3600)]

FILE_DEADLINE_S = 1200.0
EQUAL, DIFFERENT, ENDS = "equal", "different", "ends early"
NOT_APPLICABLE, NOT_RUN = "not applicable", "not run"
_PERL = Path(__file__).with_name("perl")
_TEST = re.compile(r"^(not )?ok (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """``failed`` are the numbers of the file's own tests that failed."""

    outcome: str
    passed: int
    failed: frozenset[str]
    printed: str


def run(path: Path, version: int) -> Result:
    """Groups are named as the file's subscriptions, so each file has a NATS of its own."""
    with NatsServer() as nats:
        return _run(path, version, nats)


def _run(path: Path, version: int, nats: NatsServer) -> Result:
    harness = TapHarness(version, nats)
    environment = {"PATH": os.environ["PATH"], "PGSLUICE_HARNESS_PORT": str(harness.port), "with_icu": "yes", "LC_ALL": "C"}
    try:
        finished = subprocess.run(
            ["perl", f"-I{_PERL}", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=FILE_DEADLINE_S,
        )
        printed, code = finished.stdout, finished.returncode
    except subprocess.TimeoutExpired as error:
        printed, code = (error.stdout or b"").decode(errors="replace"), -1
    finally:
        harness.close()
    tests = _TEST.findall(printed)
    failed = frozenset(number for is_not, number in tests if is_not)
    is_whole = re.search(r"^1\.\.", printed, re.MULTILINE) is not None
    outcome = EQUAL if is_whole and code == 0 else DIFFERENT if is_whole else ENDS
    return Result(outcome, len(tests) - len(failed), failed, printed)


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_do_what_subscriptions_do(version: int) -> None:
    assert shutil.which("perl") is not None, "PostgreSQL's tests are written in Perl: install it"
    listed = known("subscription", version)
    chosen = os.environ.get("POSTGRES_SUITE_FILES", "*").split(",")
    folder = tests_of(version) / "src/test/subscription/t"
    files = sorted(path for path in folder.glob("*.pl") if any(fnmatch(path.stem, each) for each in chosen))
    begun, problems, counts = time.monotonic(), list[str](), dict[str, int]()
    for number, path in enumerate(files, 1):
        entry = listed.get(path.stem)
        if entry is not None and entry.outcome in (NOT_APPLICABLE, NOT_RUN):
            outcome, told = entry.outcome, entry.reason
        else:
            result = run(path, version)
            outcome, told = result.outcome, f"{result.passed} tests passed, failed: {sorted(result.failed, key=int)}"
            problem = compare(path.stem, result, entry)
            if problem:
                problems.append(problem)
                print("".join(f"    {line}\n" for line in result.printed.splitlines() if not line.startswith("20")))
        counts[outcome] = counts.get(outcome, 0) + 1
        elapsed = int(time.monotonic() - begun)
        print(f"{elapsed // 60}:{elapsed % 60:02d}  {number} of {len(files)}  {path.stem}: {outcome}; {told}", flush=True)
    print(f"PostgreSQL {version}, subscriptions: {counts} of {len(files)} files")
    assert problems == []


def compare(file: str, result: Result, entry: Known | None) -> str:
    """What is not as it is listed; "" when nothing is."""
    expected = (EQUAL, frozenset[str]()) if entry is None else (entry.outcome, entry.parts)
    if (result.outcome, result.failed) == expected:
        return ""
    found, wanted = (sorted(numbers, key=int) for numbers in (result.failed, expected[1]))
    return f"{file}: {result.outcome}, failed {found}; listed: {expected[0]}, {wanted}"
