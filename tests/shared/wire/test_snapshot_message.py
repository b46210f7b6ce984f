"""Headers and bodies of the snapshot stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.message import Chunk
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders, encode_table, split_snapshot_body
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table

COUNTS = st.integers(min_value=0, max_value=1 << 62)
CHUNKS = st.integers(1, 1000).flatmap(lambda count: st.builds(Chunk, st.integers(1, count), st.just(count)))
HEADERS = st.builds(
    SnapshotHeaders,
    snapshot=st.from_regex(r"[0-9A-F]{16}-[0-9a-f]{8}", fullmatch=True),
    oid=st.integers(1, (1 << 32) - 1),
    attempt=st.integers(1, 1000),
    range_number=st.none() | st.integers(1, 1 << 40),
    number=st.integers(1, 1 << 40),
    rows=COUNTS,
    range_rows=COUNTS,
    range_bytes=COUNTS,
    is_range_end=st.booleans(),
    chunk=CHUNKS,
)
TABLE = Table(17, "public", "t", ReplicaIdentity.FULL, (Column("a", 25, "text", -1, True, 1, True, "", ""),))


@given(HEADERS)
def test_headers_are_read_as_they_were_written(headers: SnapshotHeaders) -> None:
    assert SnapshotHeaders.decode(headers.encode()) == headers
    assert headers.is_begin == (headers.range_number is None)


def begin_headers() -> dict[str, str]:
    return SnapshotHeaders("s", 1, 1, None, 1, 0, 0, 0, False).encode()


@pytest.mark.parametrize("name", sorted(set(begin_headers()) - {"Pgsluice-Format"}))
@pytest.mark.parametrize("value", [None, "", "x"])
def test_a_missing_or_malformed_header_is_an_error(name: str, value: str | None) -> None:
    if name == "Pgsluice-Snapshot" and value is not None:
        return  # any text is a snapshot
    headers = {key: text for key, text in begin_headers().items() if key != name} | ({} if value is None else {name: value})
    with pytest.raises(WireError):
        SnapshotHeaders.decode(headers)


@pytest.mark.parametrize("headers", [None, {}, {"Pgsluice-Format": "pgoutput/1"}])
def test_another_format_is_an_error(headers: dict[str, str] | None) -> None:
    with pytest.raises(WireError, match="copy-text/1"):
        SnapshotHeaders.decode(headers)


def test_a_body_is_its_table_and_its_rows() -> None:
    table, rows = split_snapshot_body(encode_table(TABLE) + b"1\n2\n")
    assert (table, bytes(rows)) == (TABLE, b"1\n2\n")


def test_a_body_that_is_cut_inside_its_descriptor_is_an_error() -> None:
    body = encode_table(TABLE)
    for size in range(len(body)):
        with pytest.raises(WireError):
            split_snapshot_body(body[:size])
