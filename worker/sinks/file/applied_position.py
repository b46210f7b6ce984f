"""The position file: the valid part of the worker's files, and its place in the streams. It is the sink's one durable record.

It is written next to its place and renamed over the old one, so a reader finds the old or the new one, never a half.
``file`` and ``bytes`` are for readers too: that many bytes of the file in progress are final.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pgsluice.shared.errors import USE_THE_NEWER_VERSION, TerminalError
from pgsluice.shared.wire.position import format_lsn, parse_lsn
from pgsluice.worker.sinks.file.output_directory import sync_directory
from pgsluice.worker.sinks.lines.line_output import write_all
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, CatchUp

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class FilePosition:
    """All files numbered below ``number`` are finished; of file ``number`` the first ``size`` bytes count. It may not be there
    while ``size`` is 0.

    ``suffix`` is the format of file ``number`` and ``began_at`` the time of its first commit (seconds since 1970; 0 while it is
    empty). ``writer`` names the process that wrote this.
    """

    applied: Applied
    number: int
    size: int
    began_at: float
    suffix: str
    writer: str


def new_position(suffix: str) -> FilePosition:
    return FilePosition(NOTHING_APPLIED, number=1, size=0, began_at=0.0, suffix=suffix, writer="")


def load_position(path: Path) -> FilePosition | None:
    """Returns None without a file. Raises TerminalError when it is not pgsluice's, or has another format."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        record = orjson.loads(content)
        if record["format"] != _FORMAT:
            fact = f"the position file {path} has format {record['format']}, and this version reads {_FORMAT}"
            raise TerminalError(fact, USE_THE_NEWER_VERSION)
        return _decode(record)
    except (KeyError, TypeError, ValueError) as error:
        raise TerminalError(
            f"the position file {path} is malformed ({type(error).__name__})",
            "another program wrote it; restore it, or move it and the worker's files away to begin with the oldest message",
        ) from None


def store_position(path: Path, position: FilePosition, file_name: str) -> None:
    """Stores the position; it is durable when this returns. After an error the old one or the new one remains."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, orjson.dumps(_encode(position, file_name), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync_directory(path.parent)


def _encode(position: FilePosition, file_name: str) -> dict[str, Any]:
    applied = position.applied
    return {
        "format": _FORMAT,
        "sequence": applied.sequence,
        "snapshot_sequence": applied.snapshot_sequence,
        "commit_lsn": format_lsn(applied.commit_lsn),
        "committed_at": applied.committed_at,
        "stream_created": applied.stream_created,
        "rules": applied.rules,
        "catch_up": "" if applied.catch_up is None else applied.catch_up.encode(),
        "file": file_name,
        "number": position.number,
        "bytes": position.size,
        "began_at": position.began_at,
        "suffix": position.suffix,
        "writer": position.writer,
    }


def _decode(record: dict[str, Any]) -> FilePosition:
    return FilePosition(
        Applied(
            sequence=int(record["sequence"]),
            commit_lsn=parse_lsn(record["commit_lsn"]),
            committed_at=int(record["committed_at"]),
            stream_created=str(record["stream_created"]),
            snapshot_sequence=int(record["snapshot_sequence"]),
            rules=str(record["rules"]),
            catch_up=CatchUp.decode(str(record.get("catch_up", ""))),
        ),
        number=int(record["number"]),
        size=int(record["bytes"]),
        began_at=float(record["began_at"]),
        suffix=str(record["suffix"]),
        writer=str(record["writer"]),
    )
