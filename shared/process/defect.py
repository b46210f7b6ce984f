"""An unexpected exception, described by its type and its place.

The text of an exception of Python, pyarrow or a user's own sink may quote the row that it could not process. So it is
never shown: not in a log, and not through Spark, which prints what a task raises.
"""

from __future__ import annotations

import traceback

from pgsluice.shared.errors import PgsluiceError, TaskEndedError, TerminalError, TransientError

_INSTALLED = ("site-packages", "dist-packages")


def place_of(error: BaseException) -> str:
    """Returns ``ValueError at worker/sinks/file/rows.py:12``: the innermost line of pgsluice, or of the user's code,
    that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _INSTALLED)] or frames
    name = type(error).__qualname__
    return f"{name} at {'/'.join(own[-1].filename.split('/')[-4:])}:{own[-1].lineno}" if own else name


def unexpected(error: Exception, ended: str) -> PgsluiceError:
    """Returns the process's error for ``error``, which ended a batch, for example: only memory may be available at the
    next start."""
    fact = f"an unexpected error ended {ended} ({place_of(error)})"
    if isinstance(error, MemoryError):
        # no cause: a defect, or too little memory for the current work
        return TransientError(fact, "nothing was lost; start again, with more memory or smaller batches")
    return TerminalError(fact, "nothing was lost; a defect of the sink, or of pgsluice: start again, and report it")


def ended_task(name: str, error: BaseException | None) -> PgsluiceError:
    """Returns the process's error after the end of a background task: the task's own PgsluiceError, else a
    TaskEndedError. ``error`` is None when the task returned, and CancelledError when it was cancelled unexpectedly."""
    if isinstance(error, PgsluiceError):
        return error
    how = "" if error is None else f" ({place_of(error)})"
    return TaskEndedError(f"{name} ended unexpectedly{how}", "nothing was lost; start again, and report it")
