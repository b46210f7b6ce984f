"""Bodies of change messages as one zstd frame each, with a checksum.

Who neither compresses nor meets what is compressed does not load this module, nor the library.
"""

from __future__ import annotations

import sys

from pgsluice.shared.errors import WireError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEAST_BYTES = 512  # below, headers and JetStream's own share are larger than what is gained
LEVEL = 1  # one replicator compresses for all: its CPU time matters more than a smaller stream
MOST_BYTES = 1024**3 + 64 * 1024**2
"""PostgreSQL sends no change of 1 GiB (MaxAllocSize), and a body with such a one holds it alone, with its table's descriptor."""


class BodyCompressor:
    """Keeps its memory from one body to the next, so it is one thread's."""

    def __init__(self) -> None:
        parameter = zstd.CompressionParameter
        self._compressor = zstd.ZstdCompressor(options={parameter.compression_level: LEVEL, parameter.checksum_flag: 1})

    def compress(self, body: bytes) -> bytes | None:
        """Returns None when ``body`` must be sent uncompressed: it is small, or would not become a tenth smaller."""
        if len(body) < LEAST_BYTES:
            return None
        compressed = self._compressor.compress(body, mode=zstd.ZstdCompressor.FLUSH_FRAME)
        return compressed if len(compressed) * 10 <= len(body) * 9 else None


def decompress_body(compressed: bytes, size: int) -> bytes:
    """Returns the body of ``size`` bytes. Takes memory for what comes out, never for what ``size`` promises. Raises
    WireError when it is anything but one whole frame of that size."""
    if not 0 < size <= MOST_BYTES:
        raise WireError(f"a message body claims to have {size} bytes; the program writes 1 to {MOST_BYTES}")
    frame = zstd.ZstdDecompressor()
    try:
        body = frame.decompress(compressed, max_length=size + 1)
    except zstd.ZstdError:
        raise WireError(f"a compressed message body of {len(compressed)} bytes is damaged: it is no zstd frame") from None
    if len(body) != size or not frame.eof or frame.unused_data:
        raise WireError(
            f"a compressed message body of {len(compressed)} bytes is not one zstd frame of {size} bytes, as its header claims"
        )
    return body
