"""Failures of Spark, in a sentence."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Sequence

from pgsluice.shared.errors import Cause, TransientError

_NEEDED = "executors need the driver's minor version of Python, with the libraries of pgsluice and with your custom sink"
_OBSTACLES = (
    (re.compile(r'Cannot run program "([^"]+)"'), "an executor{host} cannot run {0}: name its Python (spark: {{python: …}})"),
    (
        re.compile(r"Python in worker has different version: (\S+?) than that in driver: ([0-9.]+[0-9])"),
        "an executor{host} has Python {0}, and the driver {1}: " + _NEEDED,
    ),
    (re.compile(r"No module named '([^']+)'"), "an executor{host} has no Python module {0}: " + _NEEDED),
)
_MOST_CHARACTERS = 300
_HOST = re.compile(r"\(TID [0-9]+\) \((\S+) executor")
"""The place in Spark's message that names the machine of a lost task."""


def failure_reason(error: Exception) -> str:
    """Returns the reason of a failed Spark job, without the Java stack trace around it."""
    text = str(error).strip()
    for pattern, sentence in _OBSTACLES:
        if found := pattern.search(text):
            host = _HOST.search(text)
            return sentence.format(*found.groups(), host=f" on {host[1]}" if host else "")
    return text.partition("\n")[0]


def jvm_ended(reason: str) -> TransientError:
    return TransientError(
        f"Spark's JVM ended ({reason})",
        "nothing is lost; start again, with more memory if the system had none left (spark: {memory: …})",
        Cause.SPARK,
    )


_CAUSE = re.compile(r"([\w$]+\.[\w.$]*(?:Exception|Error)): (.+)")
_NO_CAUSE = ("at ", "Picked up ", "WARNING", "Using Spark's default log4j", "[JAVA_GATEWAY_EXITED]")
_NO_NAME = re.compile(r"UnknownHostException: ([^\s:]+)")


def start_error(error: Exception, lines: Iterable[str] = ()) -> TransientError:
    """``lines`` are what the JVM printed."""
    said = [*lines, *str(error).splitlines()]
    return TransientError(f"Spark did not start ({_cause(said) or type(error).__name__})", _start_remedy(said), Cause.SPARK)


def _cause(lines: Sequence[str]) -> str:
    """Returns the last cause that Java names, else the first line of the message; "" if it is empty."""
    named = [f"{found[1].rpartition('.')[2]}: {found[2]}" for line in lines if (found := _CAUSE.search(line.strip()))]
    told = [line for line in map(str.strip, lines) if line and not line.startswith(_NO_CAUSE)]
    return " ".join((named[-1:] or told or [""])[0].split())[:_MOST_CHARACTERS]


def _start_remedy(lines: Sequence[str]) -> str:
    if not _has_account():
        return f"user id {os.geteuid()} has no account on this machine: run it as a user that has, or add one to /etc/passwd"
    if name := _NO_NAME.search("\n".join(lines)):
        return f"this machine's name, {name[1]}, has no address: add it to /etc/hosts"
    return "see the lines of Spark in the log; check the settings under 'spark', then start again"


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True
