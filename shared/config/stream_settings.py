"""Settings of a group's streams."""

from __future__ import annotations

import enum

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option


class StreamCompression(enum.StrEnum):
    """The compressor of a group's streams: none; JetStream, block by block; the replicator, each body of changes."""

    NONE = "none"
    S2 = "s2"
    ZSTD = "zstd"


REPLICAS = Option("stream-replicas", Kind.NUMBER, "Replicas of each stream in the NATS cluster", "3", "1", minimum=1, maximum=5)


@settings
class StreamSettings:
    """``max_bytes`` is 0 when it was not configured. ``compression`` is a StreamCompression."""

    replicas: int = read(REPLICAS)
    placement_tags: tuple[str, ...] = read(
        Option("stream-placement-tags", Kind.LIST, "Tags of the NATS servers that store the streams", "ssd,eu-west")
    )
    max_bytes: int = read(
        Option(
            "stream-max-bytes",
            Kind.SIZE,
            "Largest size of one stream; when it is full, the replicator waits and the source retains WAL (default: "
            "the existing limit; for a new stream an eighth of the free NATS storage, from 256MiB to 10GiB)",
            "10GiB",
            minimum=1024 * 1024,
        )
    )
    compression: str = read(
        Option(
            "stream-compression",
            Kind.TEXT,
            "Compression of the streams: none, s2 (by NATS, in its files) or zstd (by the replicator: changes, not copied rows)",
            "zstd",
            "none",
            choices=tuple(StreamCompression),
        )
    )
    retention_s: float = read(
        Option("retention", Kind.DURATION, "Time that applied messages stay in the stream for replay", "24h", "24h")
    )
