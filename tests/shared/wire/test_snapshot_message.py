"""Headers and bodies of the snapshot stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.message import Chunk
from pgsluice.shared.wire.run_mark import NO_RUN, RunMark
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


def begin(attempt: int = 1, run: int = 0, mark: RunMark = NO_RUN) -> SnapshotHeaders:
    return SnapshotHeaders("s", 1, attempt, None, 1, 0, 0, 0, False, run=run, mark=mark)


def begin_headers() -> dict[str, str]:
    return begin().encode()


def test_a_copy_that_begins_again_and_a_run_of_a_pipeline_wait_for_what_comes_before_them() -> None:
    fences = (begin(attempt=2), begin(run=1, mark=RunMark(1, 1)), begin(attempt=2, run=3, mark=RunMark(3, 2)))
    rows_of_them = (replace(fence, range_number=1, run=0) for fence in fences)
    assert [each.is_fence for each in (begin(), *fences, *rows_of_them)] == [False, True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (begin(), "copy-text/1"),
        (begin(run=1, mark=RunMark(1, 1)), "copy-text/1"),
        (begin(run=1, mark=RunMark(1, 1, replaces=True)), "copy-text/2"),
        (begin(run=1, mark=RunMark(1, 1, deletes=0)), "copy-text/2"),
        (replace(begin(mark=RunMark(1, 1, replaces=True)), range_number=1), "copy-text/1"),
    ],
    ids=["a copy", "a run that adds rows", "a run that replaces rows", "a run that deletes rows", "rows of a run"],
)
def test_a_run_that_an_earlier_version_would_apply_wrongly_begins_in_a_format_that_it_refuses(
    headers: SnapshotHeaders, text: str
) -> None:
    assert headers.encode()["Pgsluice-Format"] == text
    assert SnapshotHeaders.decode(headers.encode()) == headers


@pytest.mark.parametrize("name", sorted(set(begin_headers()) - {"Pgsluice-Format"}))
@pytest.mark.parametrize("value", [None, "", "x"])
def test_a_missing_or_malformed_header_is_an_error(name: str, value: str | None) -> None:
    if name == "Pgsluice-Snapshot" and value is not None:
        return  # any text is a snapshot
    headers = {key: text for key, text in begin_headers().items() if key != name} | ({} if value is None else {name: value})
    with pytest.raises(WireError):
        SnapshotHeaders.decode(headers)


@pytest.mark.parametrize("mark", ["", "1", "[]", "{}", '{"run": 1}', '{"run": [], "version": 1}', '{"run": 1e400, "version": 1}'])
def test_a_malformed_mark_of_a_run_is_an_error(mark: str) -> None:
    with pytest.raises(WireError):
        SnapshotHeaders.decode(begin_headers() | {"Pgsluice-Run-Mark": mark})


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
