"""The bytes of a walsender as they lie in the socket: runs of changes become the messages that single changes become."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.replicator.assembler import LOGICAL_MESSAGE, RELATION, Assembler, Message, Published
from pgsluice.replicator.source.copy_both import end_error
from pgsluice.replicator.source.copy_data import (
    COPY_DATA,
    FRAME_OFFSET,
    KIND_OFFSET,
    PASSED_OVER,
    XLOG_DATA,
    Keepalive,
    message_end,
    missing_bytes,
)
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.pgoutput.decoder import decode_message
from pgsluice.shared.pgoutput.messages import Relation
from pgsluice.shared.wire.position import LSN
from tests.fuzz.target import is_same, read
from tests.replicator import frames
from tests.shared.pgoutput.bodies import table_of
from tests.shared.pgoutput.corpus import recordings

_NOTHING = Published(None, LSN(0), settled=True)
_CUT_BYTES = 400
"""A size at which inputs of a few hundred bytes make several messages."""

Outcome = tuple[list[Message], str]
"""Messages, and by which exception the rest was refused."""


def feed(data: bytes) -> None:
    is_same(_messages(data, in_runs=True), _messages(data, in_runs=False))
    rest = read(lambda: missing_bytes(data), ValueError)
    if message_end(data, 0) < 0 and rest is not None and len(data) >= 5 and rest < 0:
        raise AssertionError("a message lacks bytes, and is whole")


def _messages(data: bytes, *, in_runs: bool) -> Outcome:
    assembler, position, messages = Assembler(_NOTHING, _CUT_BYTES), 0, list[Message | None]()
    try:
        while True:
            if in_runs:
                position = assembler.add_run(data, position)
            end = message_end(data, position)
            if end < 0:
                break
            messages.append(_taken(assembler, data, position, end))
            position = end
        messages.append(assembler.drained())
    except PgsluiceError as error:
        return [message for message in messages if message is not None], str(error)
    return [message for message in messages if message is not None], ""


def _taken(assembler: Assembler, data: bytes, position: int, end: int) -> Message | None:
    """Takes a message as the receiver does. Raises what the receiver raises: errors of ours, which say what the server did."""
    if data[position] != COPY_DATA:
        if data[position] not in PASSED_OVER:
            raise end_error(data[position:end])
        return None
    if end <= position + FRAME_OFFSET or data[position + KIND_OFFSET] != XLOG_DATA:
        Keepalive.decode(data[position + KIND_OFFSET : end])
        return None
    frame = data[position + FRAME_OFFSET : end]
    if frame[0] == RELATION:
        relation = decode_message(frame)
        assert isinstance(relation, Relation)
        _ = assembler.xid
        return assembler.add_relation(frame, table_of(relation))
    return assembler.add_definition(frame) if frame[0] == LOGICAL_MESSAGE else assembler.add(frame)


def seeds() -> Iterator[bytes]:
    for recording in recordings():
        sent = [frames.xlog_data(frame) for frame in recording.messages]
        yield b"".join(sent)
        yield from (b"".join([frames.keepalive(n), *sent[n : n + 6]]) for n in range(0, len(sent), 6))
    small = [frames.begin(100), frames.relation(), *[frames.insert(b"a")] * 3, frames.commit(100)]
    more = [frame for lsn in (200, 300) for frame in (frames.begin(lsn), frames.insert(b"b"), frames.commit(lsn))]
    yield b"".join(map(frames.xlog_data, [*small, *more, frames.begin(400), frames.truncate(frames.OID), frames.commit(400)]))
