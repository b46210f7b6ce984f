"""Which version of the program this process runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """ "" of a program that is not installed as a package."""
    try:
        return version("pgsluice")
    except PackageNotFoundError:
        return ""
