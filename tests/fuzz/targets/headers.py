"""Headers of messages: of changes, of copied rows, of letters, of what the NATS sink published, and the texts inside of them.

An input is a header block as NATS sends it, "Name: value" a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pgsluice.shared.broker.connection import _Client
from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.dead_letter import DeadLetter, chunk_of
from pgsluice.shared.wire.message import Chunk, MessageHeaders
from pgsluice.shared.wire.position import LSN, Anchor, Position, format_lsn, parse_lsn
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.snapshot_message import SnapshotHeaders
from pgsluice.worker.sinks.nats.published_state import STATE_HEADER, PublishedPlace, PublishedState
from pgsluice.worker.sinks.sink import Applied, CatchUp
from tests.fuzz.target import is_same, read

_MOST_PAYLOAD = 1 << 20


def feed(data: bytes) -> None:
    headers = _Client._parse_header_lines(data)
    _whole(headers)
    for text in headers.values():
        _texts(text)


def _whole(headers: Mapping[str, str]) -> None:
    of_change = read(lambda: MessageHeaders.decode(headers), WireError)
    if of_change is not None:
        is_same(of_change, MessageHeaders.decode(of_change.encode()))
        of_change.bytes_before(b"")
    of_copy = read(lambda: SnapshotHeaders.decode(headers), WireError)
    if of_copy is not None:
        is_same(of_copy, SnapshotHeaders.decode(of_copy.encode()))
    letter = read(lambda: DeadLetter.of_messages(headers, [b"body"]), WireError)
    if letter is not None:
        [(encoded, body)] = letter.messages(_MOST_PAYLOAD)
        is_same(letter, DeadLetter.of_messages(encoded, [body]))
        is_same(letter, DeadLetter.decode(letter.encode()))
    read(lambda: chunk_of(headers), WireError)
    state = read(lambda: PublishedState.decode(headers), WireError)
    if state is not None:
        is_same(state, PublishedState.decode({STATE_HEADER: state.encode(state.at).decode()}))


def _texts(text: str) -> None:
    for parse in (Position.parse, Anchor.parse, Chunk.parse):
        parsed = read(lambda parse=parse: parse(text), ValueError)  # type: ignore[misc]
        if parsed is not None:
            is_same(parsed, parse(str(parsed)))
    lsn = read(lambda: parse_lsn(text), ValueError)
    if lsn is not None:
        is_same(lsn, parse_lsn(format_lsn(lsn)))
    mark = read(lambda: RunMark.decode(text), ValueError, KeyError)
    if mark is not None:
        is_same(mark, RunMark.decode(mark.encode()))
    applied = read(lambda: Applied.decode(text), ValueError)
    if applied is not None:
        is_same(applied, Applied.decode(applied.encode()))


def seeds() -> Iterator[bytes]:
    position = Position(LSN(0x16B374D848), 3)
    anchor = Anchor(position, 745, 823456789012345)
    for headers in (
        MessageHeaders(position, position, LSN(7), 1, 100, Chunk(1, 2), anchor, anchor, ddl=4),
        MessageHeaders(position, position, LSN(7), 1, 100, size=4000),
        MessageHeaders(position, position, LSN(7), 1, 100, counts_definitions=False),
        MessageHeaders(position, position, LSN(7), 1, 100, size=4000, in_kafka=True),
        SnapshotHeaders("00000003-1", 16385, 1, 2, 3, 10, 30, 400, True, Chunk(2, 2), 7),
        SnapshotHeaders("00000003-1", 16385, 2, None, 1, 0, 0, 0, False, run=2, mark=RunMark(2, 3, replaces=True, deletes=1)),
        SnapshotHeaders("00000003-1", 16385, 1, 2, 3, 10, 30, 400, False, last_key='["7"]', mark=RunMark(2, 3, ends=True)),
    ):
        yield _block(headers.encode())
    for letter in (
        DeadLetter("w", position, "public.t", "no", "2026-01-01", 3, "", 1, b"body"),
        DeadLetter("RUN", position, "public.t", "no", "2026-01-01", 3, "s", 2, b"body", '["7"]'),
    ):
        yield _block(letter.messages(_MOST_PAYLOAD)[0][0])
    applied = Applied(4, 7, 8, "2026-01-01", 3, "rules", CatchUp(2, 3, 4, frozenset({1, 2}), ((1, 5),)))
    state = PublishedState("w", "writer", PublishedPlace(applied, "0/7:1", "copy/2", 3))
    yield _block({STATE_HEADER: state.encode(5).decode()})
    yield _block({"Applied": applied.encode(), "Mark": RunMark(1, 2, deletes=0).encode()})


def _block(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
