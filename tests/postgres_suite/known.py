"""What is known to differ, each with its reason: ``known_differences.yaml``, which ``docs/reference/limits.md`` sums up."""

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
    """By file."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    found = {}
    for entry in content[suite]:
        if version in entry.get("versions", [version]):
            parts = frozenset(str(each) for each in entry.get("parts", []))
            found[entry["file"]] = Known(entry["file"], entry["outcome"], parts, entry["reason"])
    return found
