"""What tasks of a copy may fill of their stream, so that there is always room for one more message."""

from __future__ import annotations

import pytest

from pgsluice.replicator.snapshot.stream_share import (
    CUT_BYTES,
    HEADER_BYTES,
    LEAST_STREAM_BYTES,
    MOST_RANGES,
    STORED_HEADER_BYTES,
    Room,
    StreamShare,
    share_of_stream,
    size_for,
)
from pgsluice.shared.errors import TerminalError

MIB = 1 << 20
PAYLOAD = MIB
SIZES = [LEAST_STREAM_BYTES, MIB, 2 * MIB, 5 * MIB + 12_345, 6 * MIB, 64 * MIB, 256 * MIB, 10 * 1024 * MIB]


def share(size_bytes: int, tasks: int = 8, max_payload: int = PAYLOAD) -> StreamShare:
    return share_of_stream("copied", size_bytes, tasks, max_payload)


def stored(share: StreamShare, body_bytes: int) -> int:
    """What the stream counts of a body."""
    return body_bytes + -(-body_bytes // share.chunk_bytes) * STORED_HEADER_BYTES


@pytest.mark.parametrize("max_payload", [64 * 1024, PAYLOAD, 64 * MIB])
@pytest.mark.parametrize("tasks", [1, 2, 3, 8, 64, 1024])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_all_tasks_hold_at_once_is_at_most_half_of_the_stream(size_bytes: int, tasks: int, max_payload: int) -> None:
    made = share(size_bytes, tasks, max_payload)
    assert 1 <= made.tasks <= tasks
    assert 1 <= made.ranges <= MOST_RANGES
    newest = made.ranges * stored(made, made.chunk_bytes)
    assert made.tasks * (newest + stored(made, made.body_bytes)) <= size_bytes // 2
    assert made.cut_bytes < made.chunk_bytes <= made.body_bytes < made.lone_body_bytes
    assert made.tasks * newest + stored(made, made.lone_body_bytes) <= size_bytes


def test_a_stream_of_usual_size_changes_nothing() -> None:
    made = share(10 * 1024 * MIB)
    assert (made.tasks, made.ranges, made.cut_bytes, made.chunk_bytes) == (8, MOST_RANGES, CUT_BYTES, PAYLOAD - HEADER_BYTES)


def test_in_a_small_stream_fewer_tasks_copy_in_smaller_messages() -> None:
    made = share(2 * MIB)
    assert (made.tasks, made.cut_bytes, made.chunk_bytes) == (2, 32 * 1024, 64 * 1024)


def test_a_body_has_more_room_the_less_is_copied_beside_it() -> None:
    made = share(6 * MIB, 2)
    most = [made.most_bytes(room) for room in (Room.MESSAGE, Room.SHARE, Room.STREAM)]
    assert most == [made.chunk_bytes, made.body_bytes, made.lone_body_bytes]
    assert most == sorted(most)
    assert made.lone_body_bytes > 4 * MIB


@pytest.mark.parametrize("body_bytes", [200_000, 3 * MIB, 700 * MIB])
@pytest.mark.parametrize("tasks", [1, 8, 1024])
def test_the_size_that_a_refusal_names_is_enough(body_bytes: int, tasks: int) -> None:
    number, unit = size_for(body_bytes)[:-3], size_for(body_bytes)[-3:]
    assert unit == "MiB"
    assert share(int(number) * MIB, tasks).lone_body_bytes >= body_bytes


def test_a_stream_that_is_too_small_for_any_copy_is_refused() -> None:
    with pytest.raises(TerminalError) as refused:
        share(LEAST_STREAM_BYTES - 1)
    assert str(refused.value) == (
        "stream copied is limited to 262143 bytes, too few for copied rows: set stream-max-bytes to 1MiB or more"
    )
