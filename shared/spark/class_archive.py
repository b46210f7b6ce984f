"""A class archive for Spark's JVM: its thousands of classes, read and checked once, and mapped into memory at later starts.

That halves what the JVM's start costs (JEP 350, "Dynamic CDS Archives"). ``pgsluice spark-archive`` makes it. It belongs to
one installation: a JVM of another version, or with other jars, starts without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PATH = Path(sys.prefix) / "share" / "pgsluice" / "spark.jsa"

_QUIET = "-Xlog:cds*=off"


def options_to_use(given: str) -> tuple[str, ...]:
    """Returns options for a JVM that also gets the options ``given``; none without an archive, or when these name one."""
    if "ArchiveFile" in given or "ArchiveClasses" in given or not os.access(PATH, os.R_OK):
        return ()
    return f'"-XX:SharedArchiveFile={PATH}"', "-Xshare:auto", _QUIET


def options_to_make(path: Path) -> tuple[str, ...]:
    """Returns options for a JVM that leaves an archive of the classes that it used at ``path``, when it ends."""
    return f'"-XX:ArchiveClassesAtExit={path}"', _QUIET


def options_to_try(path: Path) -> tuple[str, ...]:
    """Returns options for a JVM that may crash because of the archive at ``path``: its crash files are placed next to
    it."""
    left = path.with_suffix(".log")
    return f'"-XX:SharedArchiveFile={path}"', f'"-XX:ErrorFile={left}"', "-XX:-CreateCoredumpOnCrash", _QUIET
