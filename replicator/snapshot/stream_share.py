"""The part of the snapshot stream that each task of a copy may fill: pure.

The stream keeps the newest message of a current range, which holds its progress, and all chunks of a body that is not
complete; everything else goes when every worker has applied it (``held_ranges``). So a copy comes to its end if kept
messages leave room for more: all tasks together may keep half of the stream, each its share. Of a share, one half is
for the one body that a task is publishing, the other for the newest messages of the ranges that it has copied before
and that are not noted yet.

A body is as large as a row at least. One that is larger than a task may publish waits until it may have more room, at
last all that is left when no other task runs. A row is refused only if the stream could never hold it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

from pgsluice.shared.broker.streams import MOST_BYTES, StreamState
from pgsluice.shared.errors import TerminalError

CUT_BYTES = 256 * 1024
HEADER_BYTES = 8 * 1024  # room for headers within NATS's max_payload
STORED_HEADER_BYTES = 1024  # a message's bytes in addition to its data: headers, subject, JetStream's own; about 600 in all

LEAST_STREAM_BYTES = 256 * 1024
LEAST_SHARE_BYTES = 512 * 1024  # below, fewer tasks copy at a time
LEAST_CHUNK_BYTES = 64 * 1024  # below, the way to the broker and back costs more than the rows
MESSAGES_IN_A_SHARE = 32
MOST_RANGES = 32

_MIB = 1024 * 1024


class Room(enum.Enum):
    """The permitted size of a range's bodies, which depends on what is copied at the same time."""

    MESSAGE = "message"
    """One message: its task copies other ranges too."""
    SHARE = "share"
    """Half of the task's share: the task copies nothing else."""
    STREAM = "stream"
    """The stream's limit: no other task runs."""


@dataclass(frozen=True, slots=True)
class StreamShare:
    """``tasks`` copy at a time, each at most ``ranges`` one after the other. ``cut_bytes`` of rows make a body,
    ``chunk_bytes`` is the limit of one message: both are the same for every attempt at a range, or it would not be cut
    the same way each time. ``body_bytes`` is the largest body of a range that has its task to itself,
    ``lone_body_bytes`` the largest of a range that is copied while no other is."""

    tasks: int
    ranges: int
    cut_bytes: int
    chunk_bytes: int
    body_bytes: int
    lone_body_bytes: int

    def most_bytes(self, room: Room) -> int:
        """Returns the limit of one body."""
        match room:
            case Room.MESSAGE:
                return min(self.chunk_bytes, self.body_bytes)
            case Room.SHARE:
                return self.body_bytes
            case Room.STREAM:
                return self.lone_body_bytes
            case unreachable:
                assert_never(unreachable)


def size_of(stream: StreamState) -> int:
    """Returns the stream's limit; MOST_BYTES for one that was created without a limit."""
    return stream.max_bytes if stream.max_bytes > 0 else MOST_BYTES


def share_of_stream(stream: str, size_bytes: int, tasks: int, max_payload: int) -> StreamShare:
    """Returns the share of at most ``tasks`` at a time, in a stream of ``size_bytes``. Raises TerminalError when that
    is too little for any copy."""
    if size_bytes < LEAST_STREAM_BYTES:
        raise TerminalError(
            f"stream {stream} is limited to {size_bytes} bytes, too few for copied rows", "set stream-max-bytes to 1MiB or more"
        )
    tasks = max(1, min(tasks, size_bytes // 2 // LEAST_SHARE_BYTES))
    share = size_bytes // 2 // tasks
    chunk_bytes = min(max_payload - HEADER_BYTES, max(share // MESSAGES_IN_A_SHARE, min(LEAST_CHUNK_BYTES, share // 4)))
    message_bytes = chunk_bytes + STORED_HEADER_BYTES
    messages = share // 2 // message_bytes
    ranges = min(MOST_RANGES, messages)
    newest_messages = tasks * ranges * message_bytes
    return StreamShare(
        tasks=tasks,
        ranges=ranges,
        cut_bytes=min(CUT_BYTES, chunk_bytes // 2),
        chunk_bytes=chunk_bytes,
        body_bytes=messages * chunk_bytes,
        lone_body_bytes=(size_bytes - newest_messages) // message_bytes * chunk_bytes,
    )


def size_for(body_bytes: int) -> str:
    """Returns a ``stream-max-bytes`` that takes a body of that size, whatever the number of tasks."""
    return f"{-(-2 * body_bytes // _MIB)}MiB"
