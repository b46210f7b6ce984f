"""The tables that a group publishes, under ``tables`` in the state bucket.

The replicator writes them at each start, from the source's catalog; workers check their rules and routes against them. What a
change looks like is said by its message alone: a table may have been altered since either.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import orjson

from shared.errors import TerminalError
from shared.state import StateBucket
from shared.table import Table

TABLES_KEY = "tables"


async def store_tables(bucket: StateBucket, tables: Sequence[Table]) -> None:
    """Raises TransientError when NATS does not answer."""
    names = sorted(table.qualified_name for table in tables)
    # Compressed, a hundred thousand columns fit into one message of a server with the usual limits.
    descriptors = zlib.compress(orjson.dumps([table.encode() for table in tables]))
    await bucket.put(TABLES_KEY, {"names": names, "descriptors": base64.b64encode(descriptors).decode()})


async def load_tables(bucket: StateBucket) -> list[Table] | None:
    """None before a replicator has told. Raises TerminalError for a record that ``store_tables`` does not make."""
    entry = await bucket.get(TABLES_KEY)
    if entry is None:
        return None
    try:
        descriptors = orjson.loads(zlib.decompress(base64.b64decode(entry.value["descriptors"])))
        return [Table.decode(descriptor) for descriptor in descriptors]
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise TerminalError(
            f"key {TABLES_KEY} of the group's state bucket is malformed ({type(error).__name__})",
            "start the replicator again: it writes the key anew",
        ) from None
