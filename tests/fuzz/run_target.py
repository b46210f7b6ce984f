"""Runs one target under atheris, in processes that end by themselves or by a finding."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.outcome import BUILD, MOST_MIB, Outcome
from tests.fuzz.target import CORPUS, LONGEST_S, load
from tests.source_code import REPOSITORY

PACKAGES = BUILD / "packages"
"""The folder of atheris (``install_atheris.sh``)."""

LONGEST_INPUT = 64 * 1024
"""The size of the largest document that the server takes."""

_MOST_STARTS = 20
"""Starts of a target whose processes end by findings."""
_EXECUTED = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)


def run_target(name: str, seconds: int) -> Outcome:
    """Prints each finding's file; what reaches new lines is kept for the next run."""
    findings, kept = BUILD / "findings" / name, BUILD / "corpus" / name
    for folder in (findings, kept):
        folder.mkdir(parents=True, exist_ok=True)
    folders = [str(kept), str(write_seeds(name)), str(CORPUS / name)]
    outcome, before, began = Outcome(), set(findings.iterdir()), time.monotonic()
    for _ in range(_MOST_STARTS):
        left = seconds - int(time.monotonic() - began)
        if left <= 0:
            break
        code, executed = _run(name, [*_options(findings, left), *folders], findings)
        outcome.executions += executed
        if code == 0:
            break
        if executed == 0:
            outcome.findings += 1
            print(f"{name}: ended with {code} before the first input; see {BUILD / name}.log")
            break
    outcome.seconds = time.monotonic() - began
    for path in sorted(set(findings.iterdir()) - before):
        if path.suffix != ".txt":
            outcome.findings += 1
            print(f"{name}: {path.relative_to(REPOSITORY)}{_description(path)}")
    return outcome


def write_seeds(name: str) -> Path:
    """The folder that holds them then."""
    folder = BUILD / "seeds" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for seed in load(name).seeds():
        (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    return folder


def _run(name: str, options: list[str], findings: Path) -> tuple[int, int]:
    """The exit code, and how many inputs there were."""
    with open(BUILD / f"{name}.log", "w+") as log:
        command = [*process_of(name, findings), *options]
        code = subprocess.run(command, env=environment(), stdout=log, stderr=log, cwd=REPOSITORY).returncode
        log.seek(0)
        counted = _EXECUTED.search(log.read())
    return code, int(counted[1]) if counted else 0


def _options(findings: Path, seconds: int) -> list[str]:
    """libFuzzer's."""
    options = {
        "max_total_time": seconds,
        "timeout": int(LONGEST_S),
        "rss_limit_mb": MOST_MIB,
        "max_len": LONGEST_INPUT,
        "print_final_stats": 1,
        "artifact_prefix": f"{findings}/",
    }
    return [f"-{option}={value}" for option, value in options.items()]


def _description(path: Path) -> str:
    described = path.with_name(f"{path.name}.txt")
    return f": {described.read_text().strip().splitlines()[-1][:200]}" if described.exists() else ""


def process_of(name: str, findings: Path) -> list[str]:
    """The command, without libFuzzer's options and folders."""
    return [sys.executable, "-m", "tests.fuzz.atheris_process", name, str(findings)]


def environment() -> dict[str, str]:
    paths = [str(REPOSITORY), str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
