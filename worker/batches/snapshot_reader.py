"""Reading the snapshot stream synchronously, and what the planner needs to know of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyState, Ledger
from pgsluice.shared.broker.streams import SnapshotStream, StoredMessage
from pgsluice.shared.errors import TerminalError, WireError
from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.snapshot_message import EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER, SnapshotHeaders
from pgsluice.shared.wire.table import Table
from pgsluice.worker.batches.broker_connection import BrokerConnection
from pgsluice.worker.batches.change_reader import consecutive_messages


class CopiedBody(NamedTuple):
    """One body of the snapshot stream, its chunks joined. ``sequence`` is its last chunk's."""

    sequence: int
    headers: SnapshotHeaders
    data: bytes

    def copied_rows(self, table: Table, data: memoryview) -> CopiedRows:
        """Returns ``table`` and ``data`` are from ``split_snapshot_body``. Raises WireError when the number of rows
        differs from the message's header."""
        headers, mark, rows = self.headers, self.headers.mark, bytes(data).count(b"\n")
        if rows != headers.rows:
            raise WireError(
                f"message {self.sequence} of the snapshot stream claims to have {headers.rows} rows of table"
                f" '{table.qualified_name}', and has {rows}",
                "nothing was applied from it; run 'pgsluice tables resync' for that table",
            )
        begins_run = headers.is_begin and headers.run > 0 and not mark.ends
        restarts = (headers.is_begin and headers.attempt > 1) or (begins_run and mark.replaces)
        return CopiedRows(self.sequence, table, headers.snapshot, headers.rows, data, restarts, begins_run=begins_run, mark=mark)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Progress of a copy in the snapshot stream: the sequence of its newest message, and whether it is complete."""

    last_sequence: int
    is_finished: bool


class SnapshotReader:
    """Blocking calls; every one raises TransientError when NATS does not answer."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection

    def progress(self) -> CopyProgress | None:
        """Returns None when the group never copied anything."""
        return self._connection.ask(self._progress)

    def first_fence(self, first_sequence: int, last_sequence: int) -> int | None:
        """Returns the sequence of the first message in the range that must be alone in its batch, because it begins a
        table for the second time or later, or a pipeline's run; None without one."""
        sequence = first_sequence
        while True:
            begin = self._connection.ask(lambda client, first: self._stream(client).next_begin(first), sequence)
            if begin is None or begin.sequence > last_sequence:
                return None
            if SnapshotHeaders.decode(begin.headers).is_fence:
                return begin.sequence
            sequence = begin.sequence + 1

    def bodies(self, first_sequence: int, last_sequence: int) -> Iterator[CopiedBody]:
        """Yields the bodies whose last chunk lies in the range; one that was never completed is in none. Raises
        TerminalError when a message of the range is missing."""
        for message in consecutive_messages(self._connection, self._stream, first_sequence, last_sequence):
            headers = SnapshotHeaders.decode(message.headers)
            if headers.chunk.is_last:
                yield CopiedBody(message.sequence, headers, self._whole_body(message, headers.chunk.count))
            if message.sequence >= last_sequence:
                return

    def _whole_body(self, last: StoredMessage, count: int) -> bytes:
        """Returns ``last`` with its other chunks, found backwards: each names the message before it on its subject."""
        pieces = [last.data]
        while len(pieces) < count:
            sequence = int(last.headers[EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER])
            earlier = self._connection.ask(lambda client, at: self._stream(client).message(at), sequence)
            if earlier is None:
                raise TerminalError(
                    f"message {sequence} of the snapshot stream is gone and was not applied",
                    "the stream lost messages; drop the group and copy the tables again",
                )
            pieces.append(earlier.data)
            last = earlier
        return b"".join(reversed(pieces))

    async def _progress(self, client: Client) -> CopyProgress | None:
        record = await Ledger(StateBucket(client, self._connection.names)).load_snapshot()
        if record is None:
            return None
        if record.state is CopyState.FINISHED:
            return CopyProgress(record.last_sequence, is_finished=True)
        state = await self._stream(client).state()
        return CopyProgress(state.last_sequence if state else 0, is_finished=False)

    def _stream(self, client: Client) -> SnapshotStream:
        return SnapshotStream(client, self._connection.names)
