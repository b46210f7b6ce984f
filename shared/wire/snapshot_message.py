"""The wire of a snapshot: one JetStream message holds rows of one table, as COPY text.

    subject
      pgsluice.<group>.snapshot.<snapshot>.<table oid>.<range>   rows of one page range, in order
      pgsluice.<group>.snapshot.<snapshot>.<table oid>.begin     one message without rows, stored before any range of the table;
                                                                 of a pipeline one for each run, <snapshot> followed by -<run>
    NATS headers
      Nats-Msg-Id                                <system id>/<snapshot>/<table oid>/<range or begin>/<number>
      Nats-Expected-Last-Subject-Sequence        sequence of the message before it on its subject; 0 for the first
      Pgsluice-Format                            copy-text/1; copy-text/2 where a run of a pipeline begins or ends that an
                                                 earlier version would apply wrongly (``run_mark``)
      Pgsluice-Snapshot, Pgsluice-Table          copy and table
      Pgsluice-Attempt                           how often the table was begun, this time included
      Pgsluice-Range, Pgsluice-Number            which message of which range, both from 1; no range on a begin message
      Pgsluice-Rows                              rows in this message; 0 on all but the last chunk of a body
      Pgsluice-Range-Rows, Pgsluice-Range-Bytes  rows and bytes of COPY text of the range up to and including this message
      Pgsluice-Range-End                         1, only on the last message of a range
      Pgsluice-Ledger                            revision of the table's record in the ledger that announced the snapshot: a
                                                 reader that finds an older one does not know yet whether the rows are valid
      Pgsluice-Chunk                             i/n, only when the body did not fit one NATS message
      Pgsluice-Run                               only on the begin message of a pipeline's run: which one, from 1. All rows before
                                                 it are applied before any after it. So it is on the one that ends a run that
                                                 replaces all rows
      Pgsluice-Run-Mark                          on each message of a pipeline's run (``run_mark``)
      Pgsluice-Last-Key                          only with rows that a query gave: JSON of the texts of the key that the last body
                                                 up to here ends with
    body
      u32 length + JSON descriptor of the one table, its columns those of the rows, then COPY text: whole rows, each ended by \\n

A range without rows is one message without rows. Messages of different ranges and tables interleave in the stream; the
ones of one subject are in order and complete. A body that exceeds the server's ``max_payload`` is cut into n chunks
with consecutive numbers on the same subject; the body is their concatenation.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.message import CHUNK_HEADER, FORMAT_HEADER, WHOLE, Chunk, Descriptor
from pgsluice.shared.wire.run_mark import NO_RUN, RunMark
from pgsluice.shared.wire.table import Table

FORMAT_COPY_TEXT = "copy-text/1"
FORMAT_NEW_RUN = "copy-text/2"

EXPECTED_LAST_SUBJECT_SEQUENCE_HEADER = "Nats-Expected-Last-Subject-Sequence"
SNAPSHOT_HEADER = "Pgsluice-Snapshot"
TABLE_HEADER = "Pgsluice-Table"
ATTEMPT_HEADER = "Pgsluice-Attempt"
RANGE_HEADER = "Pgsluice-Range"
NUMBER_HEADER = "Pgsluice-Number"
ROWS_HEADER = "Pgsluice-Rows"
RANGE_ROWS_HEADER = "Pgsluice-Range-Rows"
RANGE_BYTES_HEADER = "Pgsluice-Range-Bytes"
RANGE_END_HEADER = "Pgsluice-Range-End"
LEDGER_HEADER = "Pgsluice-Ledger"
RUN_HEADER = "Pgsluice-Run"
LAST_KEY_HEADER = "Pgsluice-Last-Key"
RUN_MARK_HEADER = "Pgsluice-Run-Mark"

_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class SnapshotHeaders:
    """The headers of a snapshot message without the two that only the publisher uses (id and expected sequence).

    ``range_number`` is None on a table's begin message, whose ``number`` is 1. ``ledger_revision`` is 0 where an earlier version
    published the message. ``run`` is 0 except on the messages that begin and end a run of a pipeline; ``last_key`` is "" except
    with rows that a query gave.
    """

    snapshot: str
    oid: int
    attempt: int
    range_number: int | None
    number: int
    rows: int
    range_rows: int
    range_bytes: int
    is_range_end: bool
    chunk: Chunk = WHOLE
    ledger_revision: int = 0
    run: int = 0
    last_key: str = ""
    mark: RunMark = NO_RUN

    @property
    def is_begin(self) -> bool:
        return self.range_number is None

    @property
    def is_fence(self) -> bool:
        """Returns whether all that comes before it has to be applied before it is, and it before all that comes after."""
        return self.is_begin and (self.attempt > 1 or self.run > 0)

    def encode(self) -> dict[str, str]:
        headers = {
            FORMAT_HEADER: FORMAT_NEW_RUN if self.run and self.mark.needs_new_worker else FORMAT_COPY_TEXT,
            SNAPSHOT_HEADER: self.snapshot,
            TABLE_HEADER: str(self.oid),
            ATTEMPT_HEADER: str(self.attempt),
            NUMBER_HEADER: str(self.number),
            ROWS_HEADER: str(self.rows),
            RANGE_ROWS_HEADER: str(self.range_rows),
            RANGE_BYTES_HEADER: str(self.range_bytes),
        }
        if self.range_number is not None:
            headers[RANGE_HEADER] = str(self.range_number)
        if self.is_range_end:
            headers[RANGE_END_HEADER] = "1"
        if self.ledger_revision:
            headers[LEDGER_HEADER] = str(self.ledger_revision)
        if self.chunk != WHOLE:
            headers[CHUNK_HEADER] = str(self.chunk)
        if self.run:
            headers[RUN_HEADER] = str(self.run)
        if self.last_key:
            headers[LAST_KEY_HEADER] = self.last_key
        if self.mark != NO_RUN:
            headers[RUN_MARK_HEADER] = self.mark.encode()
        return headers

    @classmethod
    def decode(cls, headers: Mapping[str, str] | None) -> SnapshotHeaders:
        """Raises WireError when a header is missing or malformed, or the format is unknown."""
        if headers is None or headers.get(FORMAT_HEADER) not in (FORMAT_COPY_TEXT, FORMAT_NEW_RUN):
            raise WireError(
                f"a message of the snapshot stream has no '{FORMAT_HEADER}: {FORMAT_COPY_TEXT}' header",
                "another program or a newer pgsluice published into the stream; nothing was applied from it",
            )
        try:
            return cls(
                snapshot=headers[SNAPSHOT_HEADER],
                oid=int(headers[TABLE_HEADER]),
                attempt=int(headers[ATTEMPT_HEADER]),
                range_number=int(headers[RANGE_HEADER]) if RANGE_HEADER in headers else None,
                number=int(headers[NUMBER_HEADER]),
                rows=int(headers[ROWS_HEADER]),
                range_rows=int(headers[RANGE_ROWS_HEADER]),
                range_bytes=int(headers[RANGE_BYTES_HEADER]),
                is_range_end=headers.get(RANGE_END_HEADER) == "1",
                chunk=Chunk.parse(headers.get(CHUNK_HEADER, "1/1")),
                ledger_revision=int(headers.get(LEDGER_HEADER, "0")),
                run=int(headers.get(RUN_HEADER, "0")),
                last_key=headers.get(LAST_KEY_HEADER, ""),
                mark=RunMark.decode(headers[RUN_MARK_HEADER]) if RUN_MARK_HEADER in headers else NO_RUN,
            )
        except (KeyError, ValueError) as error:
            raise WireError(f"a message of the snapshot stream has a missing or malformed header ({error})") from None


def encode_table(table: Table) -> bytes:
    """Returns the begin of every body of that table: the length of the descriptor, and the descriptor."""
    descriptor = Descriptor((table,)).encode()
    return _U32.pack(len(descriptor)) + descriptor


def split_snapshot_body(body: bytes) -> tuple[Table, memoryview]:
    """Returns the table and its COPY text; raises WireError when the body is not of this form."""
    end = 4 + _U32.unpack_from(body)[0] if len(body) >= 4 else -1
    if not 4 <= end <= len(body):
        raise WireError(f"a body of the snapshot stream, {len(body)} bytes long, ends inside its descriptor")
    tables = Descriptor.decode(body[4:end]).tables
    if len(tables) != 1:
        raise WireError(f"a body of the snapshot stream describes {len(tables)} tables")
    return tables[0], memoryview(body)[end:]
