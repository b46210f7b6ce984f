"""The wire between replicator and worker: one JetStream message holds a run of changes in commit order.

    NATS headers
      Nats-Msg-Id                     <system id>/<slot>/<first position>-<last position>
      Nats-Expected-Last-Sequence     sequence of the message before it
      Pgsluice-Format                 pgoutput/2, or pgoutput/2+zstd when the body is compressed
      Pgsluice-First, Pgsluice-Last   positions of the first and last change in it
      Pgsluice-Flushed                end LSN of the last commit complete at its end
      Pgsluice-Settled                newest stream sequence at whose end no transaction was open
      Pgsluice-Ddl                    newest stream sequence that holds a definition; 0 before there is one
      Pgsluice-Bytes                  bytes of all bodies in the stream up to and including this one, before compression
      Pgsluice-Size                   bytes of the body before compression, only when it is compressed or in Kafka
      Pgsluice-Anchor                 the last change's anchor: its position, transaction id and commit time
      Pgsluice-After                  the anchor of the message before it; NO_ANCHOR in the first message
      Pgsluice-Chunk                  i/n, only when the body did not fit one NATS message
    body
      u32 length + JSON descriptor, then frames: u32 length + pgoutput message (all big-endian)
      in the format pgoutput/2+zstd: one zstd frame that holds this

The frames begin with the Type and Relation messages the others need and a Begin message (repeated when a transaction
continues), so any message decodes alone. A body that exceeds the server's ``max_payload`` is cut into n chunks,
published one after the other; the body is their concatenation.

With ``stream-compression: zstd`` a body is compressed as a whole, before it is cut. One of less than 512 bytes, and one
that would not become a tenth smaller, goes as it is, so a stream may contain both formats. Of a compressed body's
chunks only the last one adds to ``Pgsluice-Bytes``.

A definition (a logical message with the prefix DDL_PREFIX) is a change like others, with its own position. It is the
only one with content in its message, so the planner of batches finds it by ``Pgsluice-Ddl`` without reading a body. One
without content has no effect: it replaces a forged one, or one that the next makes needless, and has the position of a
change.

``Pgsluice-After`` chains the messages: a worker that has applied a stream up to some change knows by it whether a
message continues from there, independent of sequences and LSNs. Streams of early versions have neither header.

The formats pgoutput/1 and pgoutput/1+zstd are the same without definitions: where none are captured, and in earlier
versions, logical messages are not asked for, so they are no changes. Only the header ``Pgsluice-Ddl`` may refer to
those before.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.position import LSN, Anchor, Position, format_lsn, parse_lsn
from pgsluice.shared.wire.table import Table

FORMAT_PGOUTPUT = "pgoutput/2"
FORMAT_KAFKA = "kafka/1"
"""Format of messages whose changes lie in Kafka (``shared.wire.kafka_range``)."""
_COMPRESSED = "+zstd"
_FORMAT_WITHOUT_DEFINITIONS = "pgoutput/1"

DDL_PREFIX = "pgsluice.ddl"
"""Prefix of the logical messages in a stream that define a table from there on."""

ID_HEADER = "Nats-Msg-Id"
EXPECTED_LAST_SEQUENCE_HEADER = "Nats-Expected-Last-Sequence"
FORMAT_HEADER = "Pgsluice-Format"
FIRST_HEADER = "Pgsluice-First"
LAST_HEADER = "Pgsluice-Last"
FLUSHED_HEADER = "Pgsluice-Flushed"
SETTLED_HEADER = "Pgsluice-Settled"
DDL_HEADER = "Pgsluice-Ddl"
BYTES_HEADER = "Pgsluice-Bytes"
SIZE_HEADER = "Pgsluice-Size"
ANCHOR_HEADER = "Pgsluice-Anchor"
AFTER_HEADER = "Pgsluice-After"
CHUNK_HEADER = "Pgsluice-Chunk"

_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The ``index``-th (from 1) of ``count`` pieces of one body."""

    index: int
    count: int

    @property
    def is_last(self) -> bool:
        return self.index == self.count

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Chunk:
        """Raises ValueError when ``text`` is not ``i/n`` with 1 <= i <= n."""
        index, _, count = text.partition("/")
        chunk = cls(int(index), int(count))
        if not 1 <= chunk.index <= chunk.count:
            raise ValueError(f"chunk {text}")
        return chunk


WHOLE = Chunk(1, 1)


def cut(body: bytes, most_bytes: int) -> Iterator[tuple[Chunk, bytes]]:
    """Yields ``body`` in chunks of ``most_bytes``, the last one shorter; itself, when it fits or is empty."""
    count = max(1, -(-len(body) // most_bytes))
    if count == 1:
        yield WHOLE, body
        return
    for index in range(1, count + 1):
        yield Chunk(index, count), body[(index - 1) * most_bytes : index * most_bytes]


@dataclass(frozen=True, slots=True)
class MessageHeaders:
    """The headers of a change message without the two that only the publisher uses (id and expected sequence).

    ``anchor`` and ``after`` are None in messages of a version that did not write them. ``size`` is the uncompressed
    size of a compressed body, or the estimated size of records ``in_kafka``; else None. ``counts_definitions``: they
    are changes of the transaction of ``last``.
    """

    first: Position
    last: Position
    flushed: LSN
    settled: int
    total_bytes: int
    chunk: Chunk = WHOLE
    anchor: Anchor | None = None
    after: Anchor | None = None
    size: int | None = None
    ddl: int = 0
    counts_definitions: bool = True
    in_kafka: bool = False

    def bytes_before(self, data: bytes) -> int:
        """Returns ``total_bytes`` of the message before this one, which holds ``data``."""
        return self.total_bytes - counted_bytes(data, self.chunk, self.size)

    def body(self, pieces: Sequence[bytes]) -> bytes:
        """Joins the data of all chunks; these are the last one's headers. Raises WireError when they do not make a body
        of the size in the headers."""
        data = b"".join(pieces)
        if self.in_kafka:
            raise WireError(
                "the changes of a message lie in Kafka", "read them there, or let a worker with worker-source: kafka read them"
            )
        if self.size is None:
            return data
        from pgsluice.shared.wire.compressed_body import decompress_body  # few read what is compressed

        return decompress_body(data, self.size)

    def encode(self) -> dict[str, str]:
        format_name = FORMAT_PGOUTPUT if self.counts_definitions else _FORMAT_WITHOUT_DEFINITIONS
        if self.in_kafka:
            format_name = FORMAT_KAFKA
        elif self.size is not None:
            format_name += _COMPRESSED
        headers = {
            FORMAT_HEADER: format_name,
            FIRST_HEADER: str(self.first),
            LAST_HEADER: str(self.last),
            FLUSHED_HEADER: format_lsn(self.flushed),
            SETTLED_HEADER: str(self.settled),
            DDL_HEADER: str(self.ddl),
            BYTES_HEADER: str(self.total_bytes),
        }
        if self.anchor is not None:
            headers[ANCHOR_HEADER] = str(self.anchor)
        if self.after is not None:
            headers[AFTER_HEADER] = str(self.after)
        if self.chunk != WHOLE:
            headers[CHUNK_HEADER] = str(self.chunk)
        if self.size is not None:
            headers[SIZE_HEADER] = str(self.size)
        return headers

    @classmethod
    def decode(cls, headers: Mapping[str, str] | None) -> MessageHeaders:
        """Raises WireError when a header is missing or malformed, or the format is unknown."""
        name, compressed, rest = ("" if headers is None else headers.get(FORMAT_HEADER, "")).partition(_COMPRESSED)
        if headers is None or rest or name not in (FORMAT_PGOUTPUT, FORMAT_KAFKA, _FORMAT_WITHOUT_DEFINITIONS):
            raise WireError(
                f"a stream message has no '{FORMAT_HEADER}: {FORMAT_PGOUTPUT}' header",
                "another program or a newer pgsluice published into the stream; nothing was applied from it",
            )
        try:
            return cls(
                first=Position.parse(headers[FIRST_HEADER]),
                last=Position.parse(headers[LAST_HEADER]),
                flushed=parse_lsn(headers[FLUSHED_HEADER]),
                settled=int(headers[SETTLED_HEADER]),
                total_bytes=int(headers[BYTES_HEADER]),
                chunk=Chunk.parse(headers.get(CHUNK_HEADER, "1/1")),
                anchor=_anchor(headers, ANCHOR_HEADER),
                after=_anchor(headers, AFTER_HEADER),
                size=int(headers[SIZE_HEADER]) if compressed or name == FORMAT_KAFKA else None,
                ddl=int(headers[DDL_HEADER] if name == FORMAT_PGOUTPUT else headers.get(DDL_HEADER, "0")),
                counts_definitions=name != _FORMAT_WITHOUT_DEFINITIONS,
                in_kafka=name == FORMAT_KAFKA,
            )
        except (KeyError, ValueError) as error:
            raise WireError(f"a stream message has a missing or malformed header ({error})") from None


def counted_bytes(data: bytes, chunk: Chunk, size: int | None) -> int:
    """Returns a message's part of ``total_bytes``: its ``data`` or, for a compressed body of ``size`` bytes, all of it
    with the last chunk. Limits of a batch are about the memory of its tasks, which is not compressed."""
    if size is None:
        return len(data)
    return size if chunk.is_last else 0


def _anchor(headers: Mapping[str, str], name: str) -> Anchor | None:
    text = headers.get(name)
    return None if text is None else _parse_anchor(text)


_parse_anchor = functools.lru_cache(16)(Anchor.parse)  # each is in two messages, one after the other


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The catalog's view of each relation in the message, which the frames lack."""

    tables: tuple[Table, ...]

    def encode(self) -> bytes:
        return orjson.dumps({"protocol": 1, "relations": [table.encode() for table in self.tables]})

    @classmethod
    def decode(cls, document: bytes) -> Descriptor:
        """Raises WireError. Messages about the same tables bring the same document, which is read once then."""
        return _decode_descriptor(document)


@functools.lru_cache(64)
def _decode_descriptor(document: bytes) -> Descriptor:
    try:
        content: Any = orjson.loads(document)
        if content["protocol"] != 1:
            raise ValueError(f"protocol {content['protocol']}")
        return Descriptor(tuple(Table.decode(relation) for relation in content["relations"]))
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"a message's descriptor is malformed ({type(error).__name__})") from None


def frame_length(payload: bytes | memoryview) -> bytes:
    """Returns the four bytes that precede ``payload`` in a body."""
    return _U32.pack(len(payload))


def encode_body(descriptor: bytes, frames: Iterable[bytes]) -> bytes:
    """Encodes ``frames`` in order, after the encoded descriptor."""
    parts = [_U32.pack(len(descriptor)), descriptor]
    for frame in frames:
        parts.append(_U32.pack(len(frame)))
        parts.append(frame)
    return b"".join(parts)


def split_body(body: bytes) -> tuple[bytes, list[bytes]]:
    """Returns the encoded descriptor and the frames; raises WireError when a length runs past the end."""
    parts: list[bytes] = []
    append, unpack, start, size = parts.append, _U32.unpack_from, 0, len(body)
    try:
        while start < size:
            end = start + 4 + unpack(body, start)[0]
            append(body[start + 4 : end])
            start = end
    except struct.error:
        start = -1
    if start != size or not parts:
        raise WireError(f"a message body of {size} bytes ends inside a frame")
    return parts[0], parts[1:]
