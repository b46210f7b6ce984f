"""The version of the program that this process runs."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def program_version() -> str:
    """Returns "" for a program that is not installed as a package. Kept: writers ask for each batch, and files of the
    package are read to know it."""
    try:
        return version("pgsluice")
    except PackageNotFoundError:
        return ""
