"""Requirements of a process that its parent does not always meet: open standard descriptors, UTF-8, no core files."""

from __future__ import annotations

import io
import os
import resource
import sys

STANDARD_OUTPUT = 1

_DESCRIPTORS = (0, STANDARD_OUTPUT, 2)

_opened: set[int] = set()


def open_standard_streams() -> None:
    """Puts /dev/null where standard input, output or error are closed.

    Otherwise the next file or socket gets their number, and what is printed goes into it; libuv refuses to work at all. To be
    called before anything else is opened.
    """
    for descriptor in _DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, so this one
            _opened.add(descriptor)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def is_output_closed() -> bool:
    """Returns whether the process was started without standard output."""
    return STANDARD_OUTPUT in _opened


def forgo_unread_errors() -> None:
    """Discards text if standard error has no reader any more. Call it last: Python flushes its streams at the end, and
    a process whose flush fails ends with 120 instead of its exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _DESCRIPTORS[-1])


def leave_no_core() -> None:
    """Has the system write no core file when this process, or one that it starts, dies of a signal: a core file holds
    passwords and rows."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def speak_utf8() -> None:
    """Makes names, passwords, paths and output UTF-8, independent of the locale.

    Python decodes arguments and variables before the first line of a program runs, so it is started again (as the same
    process) if it used another encoding. That is the case only in a locale that is not UTF-8 and when Python's own
    remedies for the locale C are switched off.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  ourselves, with the same arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
