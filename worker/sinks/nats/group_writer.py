"""The code of a Spark task for a group that the NATS sink publishes: bodies of its change stream."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import orjson

from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.shared.wire.position import Anchor, Position
from pgsluice.worker.sinks.abilities import no_pipeline
from pgsluice.worker.sinks.lines.line_output import receipt_bodies
from pgsluice.worker.sinks.nats.change_bodies import FIRST_LSN, ChangeBody, TransactionShare, body_of_copy, body_of_message
from pgsluice.worker.sinks.nats.outgoing import copied_id, encode_start, place_of, replay_id
from pgsluice.worker.sinks.sink import Partition

_LENGTHS = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """``start`` and ``copied_start`` are as in ``MessageWriter``; ``after`` is the anchor of the stream's last message,
    at whose end a transaction ``is_open`` when a batch broke off in it. It ends only when that continues: all changes
    in between are part of it."""

    after: str
    start: str = ""
    copied_start: str = ""
    is_replay: bool = False
    is_open: bool = False

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        place = place_of(self.start) if self.start else None
        if self.is_replay:
            assert not isinstance(place, Position)
            replayed = (self._replayed(message) if place is None or message.sequence > place[0] else [] for message in messages)
            return receipt_bodies(((pieces, True) for pieces in replayed), encode_start(self.start))
        assert place is None or isinstance(place, Position)
        bodies = ((_encoded(body_of_message(message, place)), True) for message in messages)
        return receipt_bodies(bodies, encode_start(self.start))

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies(self._copied(copied), encode_start(self.copied_start))

    def _replayed(self, message: MessageChanges) -> list[bytes]:
        """Returns a dead letter's change as one of the newest transaction, like copied rows: its own place was passed
        long ago."""
        after = Anchor.parse(self.after)
        lsn = max(after.position.commit_lsn, FIRST_LSN)
        newest = [
            each._replace(commit_lsn=lsn, xid=after.xid, committed_at=after.committed_at, commits=not self.is_open)
            for each in message.transactions
        ]
        return _encoded(body_of_message(replace(message, transactions=newest), None), replay_id(message.sequence).decode())

    def _copied(self, copied: Iterable[CopiedRows]) -> Iterator[tuple[list[bytes], bool]]:
        start, after, track = place_of(self.copied_start) if self.copied_start else None, Anchor.parse(self.after), 0
        assert not isinstance(start, Position)
        for rows in copied:
            if rows.begins_run:
                raise no_pipeline("a derived group", "its changes would insert existing rows")
            place = rows.sequence, track, rows.rows
            is_new = (start is None or place > start) and (rows.rows or rows.restarts)
            body = body_of_copy(rows, after, is_open=self.is_open) if is_new else None
            yield _encoded(body, copied_id(place).decode()), not rows.more_follow
            track = track + 1 if rows.more_follow else 0


def _encoded(body: ChangeBody | None, place: str = "") -> list[bytes]:
    if body is None:
        return []
    place = place or ("" if body.source is None else str(body.source))
    about = orjson.dumps([place, [tuple(share) for share in body.transactions]])
    return [_LENGTHS.pack(len(about), len(body.body)), about, body.body]


def decode_bodies(sections: bytes) -> Iterator[tuple[str, ChangeBody]]:
    """Yields each body in order, with its place as in ``outgoing``, "" for a body that only commits."""
    offset = 0
    while offset < len(sections):
        about_length, body_length = _LENGTHS.unpack_from(sections, offset)
        begin = offset + _LENGTHS.size
        offset = begin + about_length + body_length
        place, shares = orjson.loads(sections[begin : begin + about_length])
        yield place, ChangeBody(tuple(TransactionShare(*share) for share in shares), sections[offset - body_length : offset])
