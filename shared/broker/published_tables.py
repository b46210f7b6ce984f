"""The tables that a group publishes, under ``tables`` in the state bucket.

The replicator writes them at each start, from the source's catalog; workers check their rules and routes against them. What a
change looks like is said by its message alone: a table may have been altered since either.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import orjson

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import Table

TABLES_KEY = "tables"
UNCHECKED = "SQL_ASCII"
"""The encoding of a database that takes any bytes, and whose server converts none."""


async def store_tables(bucket: StateBucket, tables: Sequence[Table], encoding: str) -> None:
    """``encoding`` is that of the source database. Raises TransientError when NATS does not answer."""
    names = sorted(table.qualified_name for table in tables)
    # Compressed, a hundred thousand columns fit into one message of a server with the usual limits.
    descriptors = zlib.compress(orjson.dumps([table.encode() for table in tables]))
    content = {"names": names, "descriptors": base64.b64encode(descriptors).decode(), "encoding": encoding}
    await bucket.put(TABLES_KEY, content)


async def is_text_unchecked(bucket: StateBucket) -> bool | None:
    """Whether the source database may hold text that is not UTF-8. None before a replicator has told."""
    entry = await bucket.get(TABLES_KEY)
    return None if entry is None else entry.value.get("encoding") == UNCHECKED


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
