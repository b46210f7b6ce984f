"""Compressing pieces of output: each becomes a whole gzip member or zstd frame, which readers take one behind the other."""

from __future__ import annotations

import enum
import gzip

import pyarrow as pa

GZIP_LEVEL = 1  # three times as fast as the default level, and lines that repeat their keys still shrink to a quarter
ZSTD_LEVEL = 3


class Compression(enum.Enum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @property
    def suffix(self) -> str:
        """What it adds to a file's name."""
        return {Compression.NONE: "", Compression.GZIP: ".gz", Compression.ZSTD: ".zst"}[self]

    def compress(self, data: bytes) -> bytes:
        """Nothing stays nothing."""
        if not data or self is Compression.NONE:
            return data
        if self is Compression.GZIP:
            return gzip.compress(data, GZIP_LEVEL, mtime=0)
        compressed: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(data, asbytes=True)
        return compressed
