"""An exception that nobody expected, said by its type and its place.

The text of an exception of Python, pyarrow or a user's own sink may quote the row that it could not take. So it goes nowhere: not
into a log, and not through Spark, which prints what a task raises.
"""

from __future__ import annotations

import traceback

from pgsluice.shared.errors import PgsluiceError, TaskEndedError, TerminalError, TransientError

_INSTALLED = ("site-packages", "dist-packages")


def place_of(error: BaseException) -> str:
    """``ValueError at worker/sinks/file/rows.py:12``: the innermost line of our own, or of the user's, that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _INSTALLED)] or frames
    name = type(error).__qualname__
    return f"{name} at {'/'.join(own[-1].filename.split('/')[-4:])}:{own[-1].lineno}" if own else name


def unexpected(error: Exception, ended: str) -> PgsluiceError:
    """What ``error`` that ended, say, a batch means to the process: only memory may be there at the next start."""
    fact = f"an unexpected error ended {ended} ({place_of(error)})"
    if isinstance(error, MemoryError):
        # no cause: a defect, or too little memory for what is in hand
        return TransientError(fact, "nothing was lost; start again, with more memory or smaller batches")
    return TerminalError(fact, "nothing was lost; a defect of the sink, or of pgsluice: start again, and report it")


def ended_task(name: str, error: BaseException | None) -> PgsluiceError:
    """What the end of a task in the background means to its process: what the task raised, when that is ours, else a
    TaskEndedError. ``error`` is None when it returned, and CancelledError when nobody meant to cancel it."""
    if isinstance(error, PgsluiceError):
        return error
    how = "" if error is None else f" ({place_of(error)})"
    return TaskEndedError(f"{name} ended by itself{how}", "nothing was lost; start again, and report it")
