"""Compressed bodies: what is worth it, what comes back, and what is refused."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.compressed_body import LEAST_BYTES, MOST_BYTES, BodyCompressor, decompress_body
from tests.zstd_frame import frame_of

COMPRESSOR = BodyCompressor()
RANDOM = random.Random(1)
BODY = b"".join(b"%d\ta note about order %d\n" % (n, n) for n in range(200))


def compressed(body: bytes) -> bytes:
    frame = COMPRESSOR.compress(body)
    assert frame is not None
    return frame


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"order", b"\0" * 300, b"2026-01-31"]), max_size=60), st.integers(1, 40)
)
def test_a_body_is_sent_as_it_is_or_comes_back_from_something_a_tenth_smaller(parts: list[bytes], times: int) -> None:
    body = b"".join(parts) * times
    frame = COMPRESSOR.compress(body)
    if frame is None:
        assert len(body) < LEAST_BYTES or len(frame_of(body)) > 0.8 * len(body)
    else:
        assert len(frame) <= 0.9 * len(body)
        assert decompress_body(frame, len(body)) == body


def test_a_small_body_and_one_that_would_not_become_smaller_are_sent_as_they_are() -> None:
    assert COMPRESSOR.compress(b"x" * (LEAST_BYTES - 1)) is None
    assert COMPRESSOR.compress(RANDOM.randbytes(100_000)) is None
    assert COMPRESSOR.compress(RANDOM.randbytes(95_000) + b"x" * 5_000) is None
    assert decompress_body(compressed(b"x" * LEAST_BYTES), LEAST_BYTES) == b"x" * LEAST_BYTES


def test_bodies_compressed_one_after_the_other_come_back_each_by_itself() -> None:
    bodies = [BODY * times for times in (1, 300, 1)]
    frames = [compressed(body) for body in bodies]
    assert [decompress_body(frame, len(body)) for frame, body in zip(reversed(frames), reversed(bodies), strict=True)] == bodies[
        ::-1
    ]


def test_every_truncated_prefix_is_refused() -> None:
    frame = compressed(BODY)
    for size in range(len(frame)):
        with pytest.raises(WireError, match="compressed message body"):
            decompress_body(frame[:size], len(BODY))


def test_what_follows_the_frame_is_refused() -> None:
    frame = compressed(BODY)
    for more in (b"\0", frame, frame_of(b"")):
        with pytest.raises(WireError, match="is not one zstd frame of"):
            decompress_body(frame + more, len(BODY))


@given(st.integers(0, 8 * len(compressed(BODY)) - 1))
def test_a_bit_that_changed_is_noticed_unless_it_means_nothing(bit: int) -> None:
    frame = bytearray(compressed(BODY))
    frame[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(WireError):
        assert decompress_body(bytes(frame), len(BODY)) == BODY


@given(st.binary(max_size=200), st.integers(-1, 2**70))
def test_anything_else_raises_only_wire_errors(data: bytes, size: int) -> None:
    with pytest.raises(WireError):
        decompress_body(data, size)


@pytest.mark.parametrize("size", [len(BODY) - 1, len(BODY) + 1, 1, MOST_BYTES])
def test_a_body_of_another_size_than_its_header_says_is_refused(size: int) -> None:
    with pytest.raises(WireError, match=f"is not one zstd frame of {size} bytes, as its header claims"):
        decompress_body(compressed(BODY), size)


@pytest.mark.parametrize("size", [-1, 0, MOST_BYTES + 1, 10**30])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(WireError, match=f"claims to have {size} bytes"):
        decompress_body(compressed(BODY), size)


@pytest.mark.parametrize(("body", "size"), [(b"\0" * 50_000_000, 1000), (BODY, MOST_BYTES)])
def test_neither_a_frame_nor_a_header_can_ask_for_memory(body: bytes, size: int) -> None:
    frame = compressed(body)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decompress_body(frame, size)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
