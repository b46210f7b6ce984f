"""Failures of Spark, in a sentence."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence

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
_NO_LINES = ("at ", "... ", "[JAVA_GATEWAY_EXITED]")
_NO_CAUSE = (
    "Picked up ",
    "NOTE: Picked up ",
    "WARNING",
    "Using Spark's default log4j",
    "Error occurred during initialization of VM",
    "Error: Could not create the Java Virtual Machine",
)
_NO_KUBERNETES = "Could not parse Master URL: 'k8s:"
_NO_NAME = re.compile(r"UnknownHostException: ([^\s:]+)")
_LAST_LINES = 20


def start_error(error: Exception, lines: Iterable[str] = (), secrets: Iterable[str] = ()) -> TransientError:
    """Returns the error of a start. ``lines`` are the JVM's output; the error contains the last of them."""
    hidden = [*secrets]
    said = [without_secrets(line.strip(), hidden) for line in (*lines, *str(error).splitlines())]
    told = [line[:_MOST_CHARACTERS] for line in said if line and not line.startswith(_NO_LINES)]
    last = "".join(f"\n  {line}" for line in told[-_LAST_LINES:])
    return TransientError(
        f"Spark did not start ({_cause(told) or type(error).__name__})",
        _start_remedy(told) + (f". Spark's last lines:{last}" if last else ""),
        Cause.SPARK,
    )


def no_directory(error: OSError) -> TransientError:
    return TransientError(
        f"Spark did not start, because no temporary directory can be made ({error.strerror or type(error).__name__})",
        "let TMPDIR name a directory that this user may write to, on a disk with free space",
        Cause.SPARK,
    )


def _cause(lines: Sequence[str]) -> str:
    """Returns the last cause that Java names, else the first line of the message; "" if it is empty."""
    named = [f"{found[1].rpartition('.')[2]}: {found[2]}" for line in lines if (found := _CAUSE.search(line))]
    told = [line for line in lines if not line.startswith(_NO_CAUSE)]
    return " ".join((named[-1:] or told or [""])[0].split())


def _start_remedy(lines: Sequence[str]) -> str:
    if not _has_account():
        return f"user id {os.geteuid()} has no account on this machine: run it as a user that has, or add one to /etc/passwd"
    if any(_NO_KUBERNETES in line for line in lines):
        return "this installation has no client of Kubernetes: use the image 'pgsluice-spark-driver'"
    if name := _NO_NAME.search("\n".join(lines)):
        return f"this machine's name, {name[1]}, has no address: add it to /etc/hosts"
    return f"check the settings under 'spark'{_set_for_java()}, then start again"


def _set_for_java() -> str:
    return "".join(f" and the variable {name}" for name in _JAVA_VARIABLES if name in os.environ)


_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables with options for every JVM."""

_SECRET_NAME = re.compile(r"secret|passw|token|credential|access[._-]?key|api[._-]?key", re.IGNORECASE)
_SECRET_PAIR = re.compile(
    rf"((?:{_SECRET_NAME.pattern})[\w.-]{{0,40}}[\"']?\s{{0,3}}[=:]\s{{0,3}})(?:\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE
)
_LOGIN = re.compile(r"://\S{1,300}@")
_SHORTEST_SECRET = 6
"""Shorter values of settings are 'true', 'false' and numbers."""


def secrets_of(settings: Mapping[str, str]) -> list[str]:
    """Returns the values of secret settings, the longest first, because one may be a part of another."""
    found = (value for name, value in settings.items() if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name))
    return sorted(found, key=len, reverse=True)


def without_secrets(line: str, secrets: Iterable[str] = ()) -> str:
    """Returns ``line`` with ``***`` for each of ``secrets``, for the value of a secret's name, and for the login of a URL."""
    for secret in secrets:
        line = line.replace(secret, "***")
    return _LOGIN.sub("://***@", _SECRET_PAIR.sub(r"\1***", line))


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True
