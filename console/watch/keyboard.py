"""Keys that do something while a screen is shown; none of them appears on it."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def reading_keys(keys: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """Calls the function in ``keys`` for a typed key, on the running loop, and leaves the terminal as it was. Ctrl-C is
    still a signal. Nothing happens where standard input or output is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    descriptor = sys.stdin.fileno()

    def read() -> None:
        for letter in os.read(descriptor, 64).decode("ascii", "replace"):
            if letter in keys:
                keys[letter]()

    before, loop = termios.tcgetattr(descriptor), asyncio.get_running_loop()
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
