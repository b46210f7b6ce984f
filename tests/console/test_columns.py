"""Tables and sizes as people see them."""

from __future__ import annotations

import pytest

from pgsluice.console.columns import format_bytes, format_columns


def test_columns_are_aligned_and_numbers_stand_at_the_right() -> None:
    assert [*format_columns(("name", "n", "why"), [("orders", "7", "refused twice"), ("a", "1,234", "")], numbers={1})] == [
        "name    n      why",
        "orders      7  refused twice",
        "a       1,234",
    ]


def test_a_table_without_rows_is_its_headings() -> None:
    assert [*format_columns(("POSITION", "REASON"), [])] == ["POSITION  REASON"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 << 30, "10.0 GiB"), (1 << 42, "4.0 TiB")]
)
def test_sizes_are_shown_in_a_unit_that_fits(count: int, text: str) -> None:
    assert format_bytes(count) == text
