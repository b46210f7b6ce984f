from __future__ import annotations

from pgsluice.shared.wire.dead_letter import copied_position


def test_no_two_copied_rows_share_a_position() -> None:
    places = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    positions = [copied_position(sequence, row) for sequence, row in places]
    assert positions == sorted(set(positions))
