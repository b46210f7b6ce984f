"""What goes wrong with Spark, in a sentence."""

from __future__ import annotations

import re

from pgsluice.shared.errors import Cause, TransientError

_NEEDED = "executors need the driver's minor version of Python, with what pgsluice requires and with a sink of your own"
_OBSTACLES = (
    (re.compile(r'Cannot run program "([^"]+)"'), "an executor{host} cannot run {0}: name its Python (spark: {{python: …}})"),
    (
        re.compile(r"Python in worker has different version: (\S+?) than that in driver: ([0-9.]+[0-9])"),
        "an executor{host} has Python {0}, and the driver {1}: " + _NEEDED,
    ),
    (re.compile(r"No module named '([^']+)'"), "an executor{host} has no Python module {0}: " + _NEEDED),
)
_HOST = re.compile(r"\(TID [0-9]+\) \((\S+) executor")
"""Where Spark says on which machine a task was lost."""


def failure_reason(error: Exception) -> str:
    """What went wrong in a Spark job, without the Java stack trace around it."""
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


def start_error(error: Exception) -> TransientError:
    return TransientError(
        f"Spark did not start ({type(error).__name__})",
        "see the lines of Spark in the log; check the settings under 'spark', then start again",
        Cause.SPARK,
    )
