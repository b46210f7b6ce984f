"""One target in a process of its own, guided by atheris: ``python -m tests.fuzz.atheris_process TARGET FINDINGS OPTION…``.

The options, and folders behind them, are libFuzzer's.

libFuzzer would stop at the first exception. Here each is noted once, by its kind and the line of ours that raised it, with the
input beside it, and the search goes on. What only a signal ends, a hang or too much memory, ends this process.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import traceback
from pathlib import Path

import atheris

INSTRUMENTED = ["pgsluice", "cronsim"]
"""Packages whose lines guide the search."""

_MOST_FINDINGS = 50

with atheris.instrument_imports(include=INSTRUMENTED):
    from tests.fuzz.target import load

    target = load(sys.argv[1])


class Findings:
    """Kinds of exceptions, each with its first input, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._places: set[tuple[str, str]] = set()

    def note(self, error: Exception, data: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((frame for frame in reversed(frames) if "pgsluice" in frame.filename), frames[-1])
        known = type(error).__name__, f"{place.filename}:{place.lineno}"
        if known in self._places or len(self._places) >= _MOST_FINDINGS:
            return
        self._places.add(known)
        name = f"exception-{hashlib.sha256(data).hexdigest()[:16]}"
        (self._folder / name).write_bytes(data)
        (self._folder / f"{name}.txt").write_text("".join(traceback.format_exception(error)))


def main() -> None:
    findings = Findings(Path(sys.argv[2]))

    def feed(data: bytes) -> None:
        try:
            target.feed(data)
        except Exception as error:  # noqa: BLE001  whatever comes is a finding
            findings.note(error, data)

    again = shlex.join([sys.executable, "-m", "tests.fuzz.atheris_process", *sys.argv[1:3]])
    atheris.Setup([again, *sys.argv[3:]], feed)  # libFuzzer has the shell run its first argument again when it merges
    atheris.Fuzz()


if __name__ == "__main__":
    main()
