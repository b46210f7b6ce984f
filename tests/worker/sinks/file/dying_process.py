"""A process that dies before the n-th call to the operating system by which it changes something, as if killed there.

To die before a call that only looks is to die before the next one that changes something: nothing but files outlives a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

KILLED = 137
_SYSTEM = ("posix", "fcntl")
_ONLY_LOOK = {
    "close",  # what is not written yet is not in the operating system's hands
    "flock",  # locks end with their process
    "fspath",
    "fstat",
    "getpid",
    "listdir",
    "lseek",
    "lstat",
    "scandir",
    "stat",
    "urandom",
}


def dies_before_call(number: int, action: Callable[[], None]) -> bool:
    """Whether a child that runs ``action`` died at its call ``number`` (from 0); False when the action makes fewer calls. What
    the action raises fails the caller."""
    child = os.fork()
    if child == 0:
        _run_and_exit(number, action)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), "the action failed in the child, see its output"
    return code == KILLED


def _run_and_exit(number: int, action: Callable[[], None]) -> None:
    left = number

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event == "c_call" and getattr(argument, "__module__", None) in _SYSTEM and argument.__name__ not in _ONLY_LOOK:
            if left == 0:
                os._exit(KILLED)
            left -= 1

    code = 1
    try:
        sys.setprofile(count)
        action()
        sys.setprofile(None)
        code = 0
    except BaseException as error:  # noqa: BLE001  whatever it is must not run the parent's tests on
        sys.setprofile(None)
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)
