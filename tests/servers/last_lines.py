"""The last lines that servers and programs wrote during a test, for its report: also of those that it has closed already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MOST_BYTES = 4000

_logs: dict[Path, tuple[str, int]] = {}
"""Files that are written: whose they are, and their size when the test began."""
_kept: list[tuple[str, str]] = []
"""Last lines of files that were removed since the test began."""


def begin() -> None:
    """A test begins: what was written before is not its own."""
    _kept.clear()
    for path, (title, _) in _logs.items():
        _logs[path] = title, path.stat().st_size if path.exists() else 0


def watch(title: str, path: Path) -> None:
    if path not in _logs:
        _logs[path] = title, path.stat().st_size if path.exists() else 0


def keep(directory: Path) -> None:
    """``directory`` is about to be removed."""
    for path in [path for path in _logs if path.is_relative_to(directory)]:
        _kept.extend(_told(path))
        del _logs[path]


def told() -> list[tuple[str, str]]:
    """Title and last lines of each that wrote something since the test began."""
    return [*_kept, *(told for path in _logs for told in _told(path))]


def _told(path: Path) -> Iterator[tuple[str, str]]:
    title, begun = _logs[path]
    if path.exists() and (size := path.stat().st_size) > begun:
        with path.open("rb") as log:
            log.seek(max(begun, size - _MOST_BYTES))
            text = log.read().decode(errors="replace")
        if begun < size - _MOST_BYTES:
            text = "…" + text.partition("\n")[2]
        yield title, text
