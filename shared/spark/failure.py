"""What goes wrong with Spark, in a sentence."""

from __future__ import annotations

import re

from pgsluice.shared.errors import TransientError

_SAME_IMAGE = "; give every executor the same image as the driver's, or pgsluice installed at the same path"
_OBSTACLES = (
    (re.compile(r'Cannot run program "([^"]+)"'), "an executor has no program {}" + _SAME_IMAGE),
    (re.compile(r"No module named '([^']+)'"), "an executor has no Python module {}" + _SAME_IMAGE),
)


def failure_reason(error: Exception) -> str:
    """What went wrong in a Spark job, without the Java stack trace around it."""
    text = str(error).strip()
    for pattern, sentence in _OBSTACLES:
        if found := pattern.search(text):
            return sentence.format(found[1])
    return text.partition("\n")[0]


def jvm_ended(reason: str) -> TransientError:
    return TransientError(
        f"Spark's JVM ended ({reason})",
        "nothing is lost; start again, with more memory if the system had none left (spark: {memory: …})",
    )


def start_error(error: Exception) -> TransientError:
    return TransientError(
        f"Spark did not start ({type(error).__name__})",
        "see the lines of Spark in the log; check the settings under 'spark', then start again",
    )
