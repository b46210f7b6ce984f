"""SIGTERM, SIGINT and SIGHUP, from the program's first line to its last.

    hold      until the command is known, a signal is only remembered
    service   a command that runs until it is stopped, while it has begun nothing: the process ends at once, with 0
    calling   the running service: a separate function, then nothing more until the process has ended. One that can read its
              configuration again does so at a SIGHUP, unless that reports the end of its terminal
    release   any other command: what the system and Python do without us; a run of a pipeline takes a SIGTERM for a SIGINT

A SIGHUP that is ignored when the program starts, as ``nohup`` has it, stays ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPED = 0
"""The exit code of a service that was asked to stop."""

_held = False
_had_terminal = False
_received: list[int] = []


def hold() -> None:
    """The first call of the program. ``service`` and ``release`` do nothing without it, so that the program can be called
    from another one, which keeps its own handlers."""
    global _held, _had_terminal
    _held = True
    _had_terminal = _has_terminal()
    for number in _obeyed():
        signal.signal(number, _remember)


def service() -> None:
    """Prepares a command that runs until it is stopped; call it before its imports. May not return."""
    if not _held:
        return
    for number in _obeyed():
        signal.signal(number, _leave)
    if _received:
        os._exit(_STOPPED)


def release() -> None:
    """Prepares any other command. A signal that came meanwhile has its usual effect now."""
    global _held
    if not _held:
        return
    _held = False
    for number in _obeyed():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    while _received:
        signal.raise_signal(_received.pop())


def interrupt_on_term() -> None:
    """Makes SIGTERM do what SIGINT does, for a command that ends well when it is interrupted at the terminal."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def calling(stop: Callable[[], object], reload: Callable[[], object] | None = None) -> Iterator[None]:
    """Each signal calls ``stop``, or ``reload`` where that is what it asks for, in the main thread, between two of its
    instructions. What comes after the block is ignored: a process that is ending needs no other to end."""

    def obey(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP and reload is not None and (_has_terminal() or not _had_terminal):
            reload()
        else:
            stop()

    before = {number: signal.signal(number, obey) for number in _obeyed()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if _held else handler)


def _has_terminal() -> bool:
    """Returns whether there is a terminal that could hang up."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _obeyed() -> list[signal.Signals]:
    numbers = [signal.SIGTERM, signal.SIGINT]
    return numbers if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*numbers, signal.SIGHUP]


def _remember(number: int, _: FrameType | None) -> None:
    _received.append(number)


def _leave(*_: object) -> None:
    os._exit(_STOPPED)  # raised here, an exception could end in any library's "except"
