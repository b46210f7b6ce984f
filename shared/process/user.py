"""The user of this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Returns the user's name; the number of a user without an account, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python before 3.13 raises the former
        return str(os.getuid())
