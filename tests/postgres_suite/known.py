"""The differences that ``known_differences.yaml`` lists with their reasons; ``docs/reference/limits.md`` sums them up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("known_differences.yaml")


@dataclass(frozen=True, slots=True)
class Known:
    """``outcome`` is as the suite's test names it; ``parts`` are tables, or numbers of a TAP file's own tests."""

    file: str
    outcome: str
    parts: frozenset[str]
    reason: str


def known(suite: str, version: int) -> dict[str, Known]:
    """Returns the entries of a suite that hold for ``version``, by file."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    found = {}
    for entry in content[suite]:
        if version in entry.get("versions", [version]):
            parts = frozenset(str(each) for each in entry.get("parts", []))
            found[entry["file"]] = Known(entry["file"], entry["outcome"], parts, entry["reason"])
    return found
