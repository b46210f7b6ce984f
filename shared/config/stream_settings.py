"""How a group's streams are made."""

from __future__ import annotations

import enum

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option


class StreamCompression(enum.StrEnum):
    """Who compresses a group's streams: nobody; JetStream, block by block; the replicator, each body of changes."""

    NONE = "none"
    S2 = "s2"
    ZSTD = "zstd"


REPLICAS = Option("stream-replicas", Kind.NUMBER, "Copies of each stream in the NATS cluster", "3", "1", minimum=1, maximum=5)


@settings
class StreamSettings:
    """``max_bytes`` is 0 when nobody chose it. ``compression`` is a StreamCompression."""

    replicas: int = read(REPLICAS)
    placement_tags: tuple[str, ...] = read(
        Option("stream-placement-tags", Kind.LIST, "Tags of the NATS servers that hold the streams", "ssd,eu-west")
    )
    max_bytes: int = read(
        Option(
            "stream-max-bytes",
            Kind.SIZE,
            "Most bytes of one stream; when it is full the replicator waits and the source keeps its log (default: its own; "
            "for a new stream an eighth of what NATS has free, from 256MiB to 10GiB)",
            "10GiB",
            minimum=1024 * 1024,
        )
    )
    compression: str = read(
        Option(
            "stream-compression",
            Kind.TEXT,
            "What compresses the streams: nothing, NATS its files (s2), or the replicator its changes, not copied rows (zstd)",
            "zstd",
            "none",
            choices=tuple(StreamCompression),
        )
    )
    retention_s: float = read(
        Option("retention", Kind.DURATION, "How long applied messages stay in the stream for replay", "24h", "24h")
    )
