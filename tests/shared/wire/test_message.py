"""The wire between replicator and worker: headers, descriptor, body."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.message import (
    BYTES_HEADER,
    CHUNK_HEADER,
    DDL_HEADER,
    FIRST_HEADER,
    FLUSHED_HEADER,
    FORMAT_HEADER,
    LAST_HEADER,
    SETTLED_HEADER,
    SIZE_HEADER,
    Chunk,
    Descriptor,
    MessageHeaders,
    cut,
    encode_body,
    frame_length,
    split_body,
)
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.changes_builder import table
from tests.zstd_frame import frame_of

HEADERS = MessageHeaders(Position(LSN(0x10), 1), Position(LSN(0x20), 7), LSN(0x28), settled=12, total_bytes=3_000, ddl=9)
ENCODED = {
    "Pgsluice-Format": "pgoutput/2",
    "Pgsluice-First": "0/10:1",
    "Pgsluice-Last": "0/20:7",
    "Pgsluice-Flushed": "0/28",
    "Pgsluice-Settled": "12",
    "Pgsluice-Ddl": "9",
    "Pgsluice-Bytes": "3000",
}
DESCRIPTOR = Descriptor((table("shop.orders", "id bigint", "note text"), table("log", key=())))


def with_chunk(index: int, count: int) -> MessageHeaders:
    return MessageHeaders(HEADERS.first, HEADERS.last, HEADERS.flushed, HEADERS.settled, HEADERS.total_bytes, Chunk(index, count))


def test_headers_are_what_the_format_says() -> None:
    assert HEADERS.encode() == ENCODED
    assert MessageHeaders.decode(ENCODED | {"Nats-Msg-Id": "x", "Nats-Sequence": "3"}) == HEADERS


@pytest.mark.parametrize(("index", "count", "is_last"), [(1, 3, False), (3, 3, True)])
def test_a_chunk_is_named_with_how_many_there_are(index: int, count: int, is_last: bool) -> None:
    headers = with_chunk(index, count)
    assert headers.encode()[CHUNK_HEADER] == f"{index}/{count}"
    assert MessageHeaders.decode(headers.encode()) == headers
    assert headers.chunk.is_last == is_last


@pytest.mark.parametrize(
    "headers", [None, {}, ENCODED | {FORMAT_HEADER: "pgoutput/3"}, ENCODED | {FORMAT_HEADER: "pgoutput/2+lz4"}]
)
def test_a_message_of_another_format_is_refused(headers: dict[str, str] | None) -> None:
    with pytest.raises(WireError, match=r"no 'Pgsluice-Format: pgoutput/2' header"):
        MessageHeaders.decode(headers)


@pytest.mark.parametrize(("compressed", "size"), [("", None), ("+zstd", 700)])
def test_messages_of_the_version_before_are_read_which_knew_no_definitions(compressed: str, size: int | None) -> None:
    earlier = ENCODED | {FORMAT_HEADER: f"pgoutput/1{compressed}"} | ({} if size is None else {SIZE_HEADER: str(size)})
    del earlier[DDL_HEADER]
    assert MessageHeaders.decode(earlier) == replace(HEADERS, size=size, ddl=0, counts_definitions=False)


@pytest.mark.parametrize("name", [FIRST_HEADER, LAST_HEADER, FLUSHED_HEADER, SETTLED_HEADER, DDL_HEADER, BYTES_HEADER])
def test_a_header_that_is_missing_or_malformed_is_refused(name: str) -> None:
    for headers in ({k: v for k, v in ENCODED.items() if k != name}, ENCODED | {name: "many"}):
        with pytest.raises(WireError, match="missing or malformed header"):
            MessageHeaders.decode(headers)


@pytest.mark.parametrize("chunk", ["", "1", "0/1", "3/2", "a/b", "1/", "/1", "-1/2"])
def test_a_chunk_that_cannot_be_is_refused(chunk: str) -> None:
    with pytest.raises(WireError, match="missing or malformed header"):
        MessageHeaders.decode(ENCODED | {CHUNK_HEADER: chunk})


COMPRESSED = ENCODED | {FORMAT_HEADER: "pgoutput/2+zstd", SIZE_HEADER: "700"}


def test_a_compressed_body_is_another_format_with_the_size_that_it_had() -> None:
    headers = replace(HEADERS, size=700)
    assert headers.encode() == COMPRESSED
    assert MessageHeaders.decode(COMPRESSED) == headers
    assert MessageHeaders.decode(ENCODED | {SIZE_HEADER: "700"}).size is None


@pytest.mark.parametrize("size", [None, "", "many", "7.5"])
def test_a_compressed_body_without_its_size_is_refused(size: str | None) -> None:
    headers = {name: value for name, value in (COMPRESSED | {SIZE_HEADER: size}).items() if value is not None}
    with pytest.raises(WireError, match="missing or malformed header"):
        MessageHeaders.decode(headers)


def test_a_message_counts_with_the_bytes_of_its_body_before_compression() -> None:
    assert HEADERS.bytes_before(b"x" * 100) == 2_900
    compressed = [replace(HEADERS, chunk=chunk, size=700) for chunk in (Chunk(1, 1), Chunk(1, 2), Chunk(2, 2))]
    assert [headers.bytes_before(b"x" * 100) for headers in compressed] == [2_300, 3_000, 2_300]


@given(st.binary(min_size=1, max_size=300), st.integers(min_value=1, max_value=300))
def test_a_body_comes_back_from_its_chunks_in_either_format(body: bytes, most_bytes: int) -> None:
    for headers, stored in ((HEADERS, body), (replace(HEADERS, size=len(body)), frame_of(body))):
        assert headers.body([data for _, data in cut(stored, most_bytes)]) == body


def test_a_compressed_body_with_a_chunk_too_few_is_refused() -> None:
    pieces = [data for _, data in cut(frame_of(bytes(range(256))), 100)]
    with pytest.raises(WireError, match="is not one zstd frame of 256 bytes, as its header claims"):
        replace(HEADERS, size=256).body(pieces[:-1])


def test_a_descriptor_survives_being_written_and_read() -> None:
    assert Descriptor.decode(DESCRIPTOR.encode()) == DESCRIPTOR


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["protocol", "relations", "oid", "schema", "columns"]), inner)
    ),
    max_leaves=10,
)


@given(
    st.binary(max_size=100)
    | JSON.map(orjson.dumps)
    | JSON.map(lambda relations: orjson.dumps({"protocol": 1, "relations": relations}))
)
def test_a_malformed_descriptor_raises_only_wire_errors(document: bytes) -> None:
    with contextlib.suppress(WireError):
        assert not Descriptor.decode(document).tables


def test_a_descriptor_of_another_protocol_is_refused() -> None:
    with pytest.raises(WireError):
        Descriptor.decode(orjson.dumps({"protocol": 2, "relations": []}))


def test_a_body_is_the_descriptor_and_the_frames_each_behind_its_length() -> None:
    assert encode_body(b"{}", [b"frame", b""]) == b"\0\0\0\x02{}\0\0\0\x05frame\0\0\0\0"


@given(st.binary())
def test_a_length_is_four_bytes_big_endian(payload: bytes) -> None:
    assert struct.unpack(">I", frame_length(payload)) == (len(payload),)


@given(st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=5))
def test_a_body_cut_between_frames_has_fewer_of_them_and_cut_elsewhere_raises(descriptor: bytes, frames: list[bytes]) -> None:
    body = encode_body(descriptor, frames)
    wholes = {len(encode_body(descriptor, frames[:count])): frames[:count] for count in range(len(frames) + 1)}
    for size in range(len(body) + 1):
        if size in wholes:
            assert split_body(body[:size]) == (descriptor, wholes[size])
        else:
            with pytest.raises(WireError, match=f"of {size} bytes ends inside a frame"):
                split_body(body[:size])


def test_every_truncated_prefix_of_a_descriptor_raises() -> None:
    encoded = DESCRIPTOR.encode()
    for size in range(len(encoded)):
        with pytest.raises(WireError, match="descriptor is malformed"):
            Descriptor.decode(encoded[:size])


@given(st.binary(max_size=40), st.integers(min_value=1, max_value=12))
def test_a_body_is_the_concatenation_of_its_chunks_and_itself_when_it_fits(body: bytes, most_bytes: int) -> None:
    pieces = list(cut(body, most_bytes))
    assert b"".join(data for _, data in pieces) == body
    assert [chunk for chunk, _ in pieces] == [Chunk(i + 1, len(pieces)) for i in range(len(pieces))]
    assert all(0 < len(data) <= most_bytes for _, data in pieces if body)
    assert len(pieces) == 1 or len(body) > most_bytes
