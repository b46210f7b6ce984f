"""What a worker checks before it goes on from its sink's position."""

from __future__ import annotations

import pytest

from shared.errors import TerminalError
from shared.jetstream import StreamState
from shared.names import GroupNames
from worker.position_check import check_position, check_snapshot_position
from worker.sinks.sink import NOTHING_APPLIED, Applied

NAMES = GroupNames("orders")


def stream(first_sequence: int, last_sequence: int, created: str = "then") -> StreamState:
    return StreamState(created, first_sequence, last_sequence, last_sequence - first_sequence + 1, 0, 1 << 20)


def at(sequence: int, snapshot_sequence: int = 0) -> Applied:
    return Applied(sequence, 0, 0, "then", snapshot_sequence)


@pytest.mark.parametrize("applied", [NOTHING_APPLIED, at(0), at(4), at(9)])
def test_a_position_in_the_stream_is_fine(applied: Applied) -> None:
    check_position(NAMES, applied, stream(1, 9))


def test_a_stream_that_was_purged_up_to_the_position_is_fine() -> None:
    check_position(NAMES, at(4), stream(5, 9))
    check_position(NAMES, at(9), stream(10, 9))


@pytest.mark.parametrize(
    ("applied", "found", "said"),
    [
        (at(4), stream(1, 9, created="now"), "created anew"),
        (at(10), stream(1, 9), r"pgsluice_orders_changes ends at message 9, before what is applied \(10\)"),
        (at(4), stream(6, 9), "messages 5 to 5 were not applied"),
        (NOTHING_APPLIED, stream(2, 9), "messages 1 to 1 were not applied"),
    ],
)
def test_a_stream_that_does_not_go_on_where_the_sink_is_stops_the_worker(applied: Applied, found: StreamState, said: str) -> None:
    with pytest.raises(TerminalError, match=said):
        check_position(NAMES, applied, found)


def test_a_group_that_only_copied_has_no_change_stream() -> None:
    check_position(NAMES, at(0, snapshot_sequence=4), None)
    with pytest.raises(TerminalError, match=r"pgsluice_orders_changes ends at message 0, before what is applied \(3\)"):
        check_position(NAMES, at(3), None)


@pytest.mark.parametrize("found", [stream(1, 9), None])
def test_a_snapshot_stream_that_lost_messages_stops_the_worker(found: StreamState | None) -> None:
    check_snapshot_position(NAMES, at(4), found)
    check_snapshot_position(NAMES, at(4, snapshot_sequence=9), stream(1, 9))
    check_snapshot_position(NAMES, at(4, snapshot_sequence=9), stream(10, 9))
    with pytest.raises(TerminalError, match=r"pgsluice_orders_snapshot ends at message \d, before what is applied \(10\)"):
        check_snapshot_position(NAMES, at(4, snapshot_sequence=10), found)


def test_a_worker_that_comes_when_the_copy_was_removed_is_told_so() -> None:
    with pytest.raises(TerminalError, match="pgsluice_orders_snapshot begins at message 10; messages 1 to 9 were not applied"):
        check_snapshot_position(NAMES, NOTHING_APPLIED, stream(10, 9))
