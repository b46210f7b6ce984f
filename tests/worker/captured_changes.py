"""A source's changes as a worker's tasks decode them, without processes and a broker: its slot, the assembler, the decoder."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from pgsluice.replicator.assembler import Assembler, Message, Published
from pgsluice.replicator.source.catalog import describe_tables, published_oids
from pgsluice.replicator.source.source import Source
from pgsluice.shared.pgoutput.decoder import decode_message
from pgsluice.shared.pgoutput.messages import Relation
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import Table
from tests.replicator.definitions.captured import at_source
from tests.servers import Database

_CHANGES = b"SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"


class CapturedChanges:
    """Of all tables that are in schema public when it begins; none of them is altered."""

    def __init__(self, source: Database, group: str, cut_bytes: int) -> None:
        self._names = GroupNames(group)
        self._source = source
        self._connection: psycopg.Connection[tuple[Any, ...]] = source.connect()
        self._sequence = 0
        self._assembler = Assembler(Published(None, LSN(0), settled=True), cut_bytes)
        source.execute(f'CREATE PUBLICATION "{self._names.publication}" FOR ALL TABLES')
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._names.slot])
        self._tables = {table.oid: table for table in at_source(source.settings, self._describe)}

    def close(self) -> None:
        self._connection.execute("SELECT pg_drop_replication_slot(%s)", [self._names.slot])
        self._connection.close()

    def read(self) -> list[MessageChanges]:
        """Those that were committed since it was read before, cut at the assembler's size; no transaction is open at the end."""
        rows = self._connection.execute(_CHANGES, [self._names.slot, f'"{self._names.publication}"']).fetchall()
        made = [message for (frame,) in rows if (message := self._add(bytes(frame))) is not None]
        rest = self._assembler.drained()
        return [self._decoded(message) for message in (made if rest is None else [*made, rest])]

    def _add(self, frame: bytes) -> Message | None:
        if not frame.startswith(b"R"):
            return self._assembler.add(frame)
        relation = decode_message(frame)
        assert isinstance(relation, Relation)
        return self._assembler.add_relation(frame, self._tables[relation.oid])

    def _decoded(self, message: Message) -> MessageChanges:
        self._sequence += 1
        return decode_changes(
            message.body, first_sequence=self._sequence, sequence=self._sequence, first_ordinal=message.first.ordinal
        )

    async def _describe(self, source: Source) -> list[Table]:
        version = self._connection.info.server_version // 10000
        return await describe_tables(source, self._names, await published_oids(source, self._names), version)


def batches(messages: Sequence[MessageChanges], choose: random.Random) -> Iterator[list[list[MessageChanges]]]:
    """Random batches of random partitions. A batch ends where no transaction is open, a partition wherever a message does."""
    partitions: list[list[MessageChanges]] = [[]]
    for message in messages:
        partitions[-1].append(message)
        if message.transactions[-1].commits and choose.random() < 0.4:
            yield partitions
            partitions = [[]]
        elif choose.random() < 0.3:
            partitions.append([])
    left = [partition for partition in partitions if partition]
    if left:
        yield left
