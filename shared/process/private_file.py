"""Files that only this user may read, and where a user's programs keep what has to outlive them."""

from __future__ import annotations

import os
from pathlib import Path

OURS_ALONE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Writes the file whole or not at all, also when the machine dies meanwhile; readable by this user alone from its
    first byte on. Creates the folder if necessary. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, OURS_ALONE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), OURS_ALONE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def state_home() -> Path:
    """Returns the folder of the XDG base directory specification for state of a user's programs."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pgsluice"
