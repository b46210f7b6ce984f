"""The stdout sink: one JSON line for each copied row and each change on standard output, at least once.

``LineEncoding`` makes the lines.

The lines of a batch are handed to the operating system before the position moves, so a crash in between prints them
again at the next start; a batch that is tried again by the same process is not printed twice. A process that is killed
may leave its last line torn: a line is whole if it has its line feed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import ConsumerGoneError, TerminalError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.rows.changes import CopiedRows, MessageChanges
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.lines.line_output import receipt_bodies, write_all
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Delivery, Partition, Receipt
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.stdout.reader_watch import ReaderWatch

STANDARD_OUTPUT = 1


@dataclass(frozen=True, slots=True)
class StdoutWriter:
    """Receipt bodies are lines, about RECEIPT_BYTES of them; one message is never cut, so a large one makes a large body."""

    form: LineEncoding

    def write(self, partition: Partition, messages: Iterable[MessageChanges]) -> Iterator[bytes]:
        return receipt_bodies((self.form.encode(message), True) for message in messages)

    def write_copied(self, partition: Partition, copied: Iterable[CopiedRows]) -> Iterator[bytes]:
        return receipt_bodies((self.form.encode_copied(rows), not rows.more_follow) for rows in copied)


class StdoutSink:
    """Writes to ``descriptor``; the position is in the group's state bucket."""

    delivery = Delivery.STREAMED
    keeps_catch_up = True

    def __init__(
        self,
        settings: WorkerSettings,
        stdout: StdoutSinkSettings,
        descriptor: int = STANDARD_OUTPUT,
    ) -> None:
        self._positions = BucketPositions(settings.nats, settings.group, settings.name)
        self._writer = StdoutWriter(LineEncoding.of(stdout.lines, settings.group))
        self.definitions = self._writer.form.definitions
        self._descriptor = descriptor
        self._reader = ReaderWatch()
        self._applied = NOTHING_APPLIED
        self._written = NOTHING_APPLIED
        """Everything up to here is handed over, by this process or before it."""

    def report_to(self, pulse: Pulse) -> None:
        self._reader.pulse = pulse

    def tick(self) -> None:
        self._reader.tell()

    def open(self) -> Applied:
        self._applied = self._written = self._positions.load()
        return self._applied

    def renumber(self, applied: Applied) -> None:
        self._positions.renumber(applied)
        self._applied = self._written = applied

    def writer(self) -> StdoutWriter:
        return self._writer

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Raises ConsumerGoneError when the output has no reader any more; the position stays where it was."""
        applied = self._applied
        for receipt in receipts:
            if not self._written.covers(receipt):
                self._print(receipt.body)
                self._written = self._written.after(receipt, stream_created)
            applied = applied.after(receipt, stream_created)
        self._positions.store(applied)
        self._applied = applied
        return applied

    def finish_copy(self) -> None:
        """Does nothing: a line was final when it was written."""

    def close(self) -> None:
        self._positions.close()

    def _print(self, lines: bytes) -> None:
        """Raises ConsumerGoneError or TerminalError."""
        try:
            with self._reader.writing():
                write_all(self._descriptor, lines, self._reader.taken)
        except BrokenPipeError:
            raise ConsumerGoneError(
                "the reader of standard output is gone",
                "start reader and worker again; the worker continues with the batch that it could not write",
            ) from None
        except OSError as error:
            raise TerminalError(
                f"standard output cannot be written ({os.strerror(error.errno or 0)})",
                "make room or give another destination; when started again, the worker continues with the same batch",
            ) from None
