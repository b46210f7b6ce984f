"""Findings of ``pgsluice check`` about an output directory: is it writable, and does its disk have room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.preflight.finding import Finding, Severity, Subject
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.file.formats import place_names
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.incoming import Incoming

_NEEDED = {"enter": os.X_OK, "read": os.R_OK, "write": os.W_OK}


def find(worker: WorkerSettings, settings: FileSinkSettings, incoming: Incoming) -> list[Finding]:
    """The worker makes a directory that is missing, so then the nearest one above it counts."""
    return list(_found(Path(settings.directory), settings, incoming.tables or ()))


def _found(directory: Path, settings: FileSinkSettings, tables: Sequence[Table]) -> Iterator[Finding]:
    there = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    check, severity, subject = "file-directory", Severity.ERROR, Subject.SINK
    if not there.is_dir():
        yield Finding(check, severity, subject, f"{there} is no directory", "give another file-output-dir", is_usage=True)
        return
    if lacking := [right for right, mode in _NEEDED.items() if not os.access(there, mode)]:
        first = lacking[:1] if "enter" in lacking and there != directory else lacking  # of what is below nothing is known
        fact = f"user {os.geteuid()} may not {' nor '.join(first)} {there}"
        remedy = "let this user do so (chown, chmod), or give another file-output-dir"
        yield Finding(check, severity, subject, fact, remedy)
        return
    if (names := place_names(settings, there)) is not None:
        yield from names.findings(tables)
    if (free := shutil.disk_usage(there).free) < 2 * settings.rotate_bytes:
        fact = f"the disk of {there} has {free // 2**20} MiB free, and one file takes {settings.rotate_bytes // 2**20} MiB"
        yield Finding("file-disk", Severity.WARNING, subject, fact, "make room, or lower file-rotate-bytes")
