"""Places in the WAL, as text and as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.wire.position import format_lsn, parse_lsn


@pytest.mark.parametrize(
    ("text", "number"), [("0/0", 0), ("16/B374D848", 0x16_B374_D848), ("FFFFFFFF/FFFFFFFF", 2**64 - 1), ("1/0", 1 << 32)]
)
def test_an_lsn_is_spelled_as_the_server_spells_it(text: str, number: int) -> None:
    assert parse_lsn(text) == number
    assert format_lsn(number) == text


def test_lower_case_and_leading_zeros_are_read() -> None:
    assert parse_lsn("00000016/b374d848") == parse_lsn("16/B374D848")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "16",
        "16/",
        "/B3",
        "16/B374D848 ",
        "16/B374D848\n",
        "123456789/0",
        "0/123456789",
        "G/0",
        "-1/0",
        "\u0661/0",
        "1/2/3",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)


@given(st.integers(0, 2**64 - 1))
def test_every_lsn_survives_being_written_and_read(number: int) -> None:
    assert parse_lsn(format_lsn(number)) == number
