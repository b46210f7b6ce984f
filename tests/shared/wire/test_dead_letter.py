"""Dead letters: where they are in commit order, and what is none."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.dead_letter import LETTER_HEADER, DeadLetter, copied_position
from pgsluice.shared.wire.position import LSN, Position

LETTER = DeadLetter("w", Position(LSN(7), 1), "public.t", "no", "2026-01-01", 3, "", 1, b"body")


def test_no_two_copied_rows_share_a_position() -> None:
    places = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    positions = [copied_position(sequence, row) for sequence, row in places]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("facts", [b"", b"1", b"{}", b"[]", b'{"position": 1}'])
def test_what_is_no_letter_is_an_error(facts: bytes) -> None:
    assert DeadLetter.decode(LETTER.encode()) == LETTER
    with pytest.raises(WireError):
        DeadLetter.decode(len(facts).to_bytes(4, "big") + facts)


@pytest.mark.parametrize("facts", ["", "1", "{}", "[" * 100_000, '{"worker": 1}'])
def test_a_malformed_header_is_an_error(facts: str) -> None:
    [(headers, body)] = LETTER.messages(1000)
    assert DeadLetter.of_messages(headers, [body]) == LETTER
    with pytest.raises(WireError):
        DeadLetter.of_messages(headers | {LETTER_HEADER: facts}, [body])
