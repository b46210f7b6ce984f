"""Audits the locked packages for known vulnerabilities: ``python -m tools.audit PIP_AUDIT [--strict]``.

The exit code is 1 if a package has one. If the advisory service does not answer, or does not know a package, the audit prints
that and exits with 0, so that a check passes on a machine without that service; with ``--strict``, as for a release, with 1.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.version import REPOSITORY

LOCKED = ("dev", "tools")
"""Files of ``requirements/`` that together contain every locked package."""

_OUT_OF_REACH = re.compile(r"(?:ConnectionError|Timeout|ServiceError|HTTPError)\b.*")
_OPTIONS = ("--require-hashes", "--disable-pip", "--format=json", "--progress-spinner=off")


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: vulnerable packages, and the reasons why others are ``unknown``."""

    vulnerable: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_report(report: dict[str, Any]) -> Audit:
    """Reads pip-audit's JSON."""
    packages = report["dependencies"]
    return Audit(
        tuple(
            f"{each['name']} {each['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
            for each in packages
            for flaw in each.get("vulns", ())
        ),
        tuple(each["skip_reason"] for each in packages if "skip_reason" in each),
    )


def audit(pip_audit: str, locked: Path) -> Audit:
    """Runs pip-audit. Raises RuntimeError when it fails for another reason than its service."""
    done = subprocess.run([pip_audit, *_OPTIONS, "--requirement", str(locked)], capture_output=True, text=True)
    if done.stdout.startswith("{"):
        return read_report(json.loads(done.stdout))
    if reasons := _OUT_OF_REACH.findall(done.stderr):
        return Audit(unknown=(reasons[-1],))
    raise RuntimeError(f"pip-audit failed for {locked.name}: {done.stderr}")


def main(arguments: Sequence[str]) -> int:
    found = [audit(arguments[0], REPOSITORY / "requirements" / f"{name}.txt") for name in LOCKED]
    vulnerable, unknown = ({line for each in found for line in getattr(each, kind)} for kind in ("vulnerable", "unknown"))
    for line in sorted(vulnerable):
        print(f"vulnerable: {line}")
    if unknown:
        print(f"NOT AUDITED: the advisory service did not answer for {len(unknown)} packages, first: {sorted(unknown)[0]}")
    elif not vulnerable:
        print("audited: no known vulnerability in what is locked")
    return 1 if vulnerable or (unknown and "--strict" in arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
