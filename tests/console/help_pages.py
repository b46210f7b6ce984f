"""Help pages of the program, each as a process of its own shows it that has loaded nothing else.

Run as a program it forks a process for each page from one that has imported the program and chosen no command. So a page costs
what it adds to that, and all pages of the program together two seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.source_code import REPOSITORY


class HelpPage(NamedTuple):
    """``cpu_s`` is the processor's time from the start of the interpreter to the end of the page; ``loaded`` are the modules
    that its process has by then."""

    command: str
    exit_code: int
    text: str
    cpu_s: float
    loaded: frozenset[str]


def help_pages(commands: Iterable[str], environment: dict[str, str] | None = None, flag: str = "--help") -> list[HelpPage]:
    """Of commands like "worker postgres"; "" is the program itself."""
    given = list(commands)
    process = [sys.executable, "-m", "tests.console.help_pages", json.dumps(given), flag]
    env = os.environ | (environment or {})
    ended = subprocess.run(process, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=120, check=True)
    found = zip(given, json.loads(ended.stdout), strict=True)
    return [HelpPage(command, page["code"], page["text"], page["cpu_s"], frozenset(page["loaded"])) for command, page in found]


def _forked(arguments: list[str], started_s: float) -> Any:
    from pgsluice.console.program import run

    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                code = run(arguments)
            page = {"code": code, "text": shown.getvalue(), "cpu_s": started_s + time.process_time(), "loaded": [*sys.modules]}
            with os.fdopen(writing, "w") as pipe:
                json.dump(page, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        page = json.load(pipe)
    os.wait()
    return page


def main() -> None:
    import pgsluice.console.program  # noqa: F401  before the first page, so that each has to load only what is its own

    started_s = time.process_time()
    commands: list[str] = json.loads(sys.argv[1])
    json.dump([_forked([*command.split(), sys.argv[2]], started_s) for command in commands], sys.stdout)


if __name__ == "__main__":
    main()
