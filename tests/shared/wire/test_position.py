"""Places of changes in commit order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.wire.position import LSN, Position

POSITIONS = st.builds(Position, st.integers(0, 2**64 - 1).map(LSN), st.integers(0, 2**40))


def test_the_commit_counts_before_the_ordinal() -> None:
    assert Position(LSN(0xFFFF_FFFF), 9) < Position(LSN(0x1_0000_0000), 1) < Position(LSN(0x1_0000_0000), 2)


def test_a_position_is_readable() -> None:
    assert str(Position(LSN(0x16_B374_D848), 3)) == "16/B374D848:3"


@given(POSITIONS)
def test_every_position_survives_being_written_and_read(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", "16/B374D848", "16/B374D848:", ":3", "16/B374D848:-1", "16/B374D848:٣", "16/B374D848:1:2", "x:1"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not an? (position|LSN)"):
        Position.parse(text)
