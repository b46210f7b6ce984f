"""Where messages begin and end."""

from __future__ import annotations

import struct

import pytest

from pgsluice.replicator.source.copy_data import (
    CHANGE_HEAD,
    FrameLengths,
    Keepalive,
    encode_message,
    encode_status,
    message_end,
    missing_bytes,
)
from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.position import LSN
from tests.replicator import frames

MESSAGE = frames.xlog_data(frames.insert(b"a value"))


def test_a_message_that_is_not_whole_has_no_end() -> None:
    for size in range(len(MESSAGE)):
        assert message_end(b"before" + MESSAGE[:size], len(b"before")) == -1
    assert message_end(b"before" + MESSAGE + b"d", len(b"before")) == len(b"before" + MESSAGE)


def test_no_more_is_waited_for_than_a_message_lacks() -> None:
    for size in range(len(MESSAGE) + 1):
        missing = missing_bytes(MESSAGE[:size])
        assert missing == (0 if size == 0 else 5 - size if size < 5 else len(MESSAGE) - size)


@pytest.mark.parametrize("garbage", [b"x", b"\0\0\0\0\0\0", b"d\0\0\0\3", b"d\xff\xff\xff\xff"])
def test_what_begins_no_message_is_not_waited_for(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="a message of"):
        missing_bytes(garbage)


@pytest.mark.parametrize("content", [b"", b"k", b"k" + bytes(18), b"w" + bytes(17), b"p" + bytes(17)])
def test_what_is_neither_a_change_nor_a_keepalive_is_no_keepalive(content: bytes) -> None:
    with pytest.raises(WireError):
        Keepalive.decode(content)


def test_a_status_says_of_no_more_than_is_confirmed_that_it_is_flushed_or_applied() -> None:
    """As the manual has it: written, flushed, applied. The server forgets what is flushed."""
    kind, written, flushed, applied, clock_us, reply = struct.unpack(">cQQQqB", encode_status(LSN(500), LSN(100), 7, reply=True))
    assert (kind, written, flushed, applied, clock_us, reply) == (b"r", 500, 100, 100, 7, 1)


@pytest.mark.parametrize("size", [1, 5, 100, 4000])
def test_of_a_change_the_length_is_known_by_its_head(size: int) -> None:
    data = frames.xlog_data(b"I" + bytes(size - 1)) + bytes(10)
    head, _ = CHANGE_HEAD.unpack_from(data)
    assert FrameLengths()[head] == (30 + size, size.to_bytes(4, "big"))


@pytest.mark.parametrize(
    "data",
    [
        frames.keepalive(7),
        encode_message(ord("N"), b"wwwwwwwwwwwwwwww"),
        encode_message(ord("d"), b"p" + bytes(40)),
        frames.xlog_data(b""),
        frames.xlog_data(bytes(5000)),
    ],
    ids=["keepalive", "notice", "other CopyData", "empty", "long"],
)
def test_of_anything_else_nothing_is_known(data: bytes) -> None:
    lengths = FrameLengths()
    length, frame_length = lengths[int.from_bytes(data[:8], "big")]
    assert length > 1 << 40
    assert frame_length == b""
    assert not lengths, "nothing is remembered of it"
