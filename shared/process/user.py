"""Who runs this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Its number for a user without an account, as a container may be given."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python before 3.13 raises the former
        return str(os.getuid())
