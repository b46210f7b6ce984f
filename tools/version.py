"""Writes the version of pyproject.toml into the files that repeat it: ``python -m tools.version 0.2.0``."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "docker/compose.yaml": r"image: pgsluice:(\S+)$",
    "deploy/helm/pgsluice/Chart.yaml": r"^(?:version|appVersion): (\S+)$",
    "deploy/kubernetes/kustomization.yaml": r"newTag: (\S+)$",
    "deploy/kubernetes/spark-worker.yaml": r"/pgsluice-executor:(\S+)$",
    "docs/reference/versions.md": r"^- The version in the code is (\d\S+\d)\.",
    "docs/faq.md": r"The code is at version (\d\S+\d),",
}
"""Patterns that find the version, by file."""


def current_version(repository: Path = REPOSITORY) -> str:
    version: str = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    return version


def versions(text: str, pattern: str) -> list[re.Match[str]]:
    return [*re.finditer(pattern, text, re.MULTILINE)]


def set_version(version: str, repository: Path = REPOSITORY) -> None:
    for name, pattern in PLACES.items():
        text = (repository / name).read_text()
        for found in reversed(versions(text, pattern)):
            text = text[: found.start(1)] + version + text[found.end(1) :]
        (repository / name).write_text(text)


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        set_version(wanted)
    print(current_version())
