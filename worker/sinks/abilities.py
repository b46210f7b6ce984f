"""Optional abilities of a sink, in addition to the protocol of every sink (``sink.Sink``).

It has an ability when it has the method: ``tick`` (``TickingSink``), ``renumber`` (``RenumberedSink``), ``task_files``
(``FileReadingSink``), ``missed`` (``CountingSink``), ``expect_missing`` (``MissingRowSink``), ``unchanged``
(``ComparingSink``), ``break_off`` (``PatientSink``), ``report_to`` (``ReportingSink``), ``foresee``
(``ForeseeingSink``), ``apply_ddl`` (``AlteredSink``), ``accept`` (``AcceptingSink``), ``collect`` (``MeasuredSink``),
``rejected`` (``BlamingSink``), ``place_names`` (``NamingSink``); or the attribute: ``definitions`` (``DefinedSink``),
``keeps_catch_up`` (``TwoLaneSink``), ``takes_whole_transactions`` (``WholeTransactionSink``); and ``EventSink``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, runtime_checkable

from pgsluice.shared.broker.worker_records import UnchangedRows
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.metrics.metric import Sample
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.sink import Applied, DefinitionUse, MissedChanges, PartitionWriter, Sink


@runtime_checkable
class TickingSink(Sink, Protocol):
    """A sink that has something to do while no batch comes."""

    def tick(self) -> None:
        """Called once or twice a second from another thread than ``commit``, also while that is under way: it must not wait.
        After a TransientError it is called again; a TerminalError stops the worker."""
        ...


@runtime_checkable
class RenumberedSink(Sink, Protocol):
    """A sink that can continue when the stream holds the applied changes at another sequence than before, as after a
    power cut of the broker. Without it the worker stops then."""

    def renumber(self, applied: Applied) -> None:
        """Makes ``applied`` durable as the position: the one that ``open`` returned, at another sequence. Called after ``open``,
        before any batch. Raises as ``commit``."""
        ...


@runtime_checkable
class FileReadingSink(Sink, Protocol):
    """A sink whose writer reads files that its settings name, which must be on every machine that runs tasks."""

    @property
    def task_files(self) -> Sequence[str]: ...


@runtime_checkable
class CountingSink(Sink, Protocol):
    """A sink that knows which changes met no row."""

    def missed(self) -> Sequence[MissedChanges]:
        """Returns all missed changes since the position began, or the table was filled again; as durable as the
        position. The same object until it changes."""
        ...


MayLeaveOut = Callable[[int, tuple[str, str]], bool]
"""Returns whether rules or routes may leave out rows of a table, given its OID, schema and name at the source."""


@runtime_checkable
class MissingRowSink(CountingSink, Protocol):
    """A sink that may take it for a fault when a change meets no row."""

    def expect_missing(self, may_leave_out: MayLeaveOut) -> None:
        """The worker calls it before the first batch. A change of a table for which ``may_leave_out`` is true is no fault."""
        ...


@runtime_checkable
class ComparingSink(Sink, Protocol):
    """A sink that compares the rows of a SQL pipeline's run with existing ones."""

    def unchanged(self) -> UnchangedRows | None:
        """Returns the unchanged rows of the newest run; None before the first of its rows since ``open``."""
        ...


@runtime_checkable
class TwoLaneSink(Sink, Protocol):
    """A sink that keeps ``Applied.catch_up`` with the rest of the position, as ``Applied.encode`` does, and whose ``finish_copy``
    may be called while ``commit`` is under way on another thread. With any other all tables wait while one is copied."""

    keeps_catch_up: bool
    """True."""


@runtime_checkable
class WholeTransactionSink(Sink, Protocol):
    """A sink whose tasks write while others do, and which orders transactions only. Then a partition holds whole
    transactions, and definitions are among its changes."""

    takes_whole_transactions: bool
    """True."""


@runtime_checkable
class MeasuredSink(Sink, Protocol):
    """A sink with its own metrics."""

    def collect(self) -> Sequence[Sample]:
        """Called from any thread."""
        ...


@runtime_checkable
class BlamingSink(Sink, Protocol):
    """A sink that can only guess which of a row's changes is refused, and guesses otherwise after some passes."""

    def rejected(self) -> None:
        """Called when changes of the current batch were rejected, by its tasks or by ``commit``, before it is written
        again. Not called for transient failures of a pass."""
        ...


@runtime_checkable
class PatientSink(Sink, Protocol):
    """A sink whose ``commit`` waits for its destination as long as it takes."""

    def break_off(self) -> None:
        """Called from another thread than ``commit``, when the worker must end and ``commit`` is still under way: that raises
        TransientError soon. Nothing but ``close`` follows."""
        ...


@runtime_checkable
class ReportingSink(Sink, Protocol):
    """A sink that knows what it waits for, and that it moves, while one of its calls takes long."""

    def report_to(self, pulse: Pulse) -> None:
        """Called once, before ``open``. During any call the sink notes in ``pulse`` each step that moved the batch,
        each wait or retry, and the end of a wait."""
        ...


@runtime_checkable
class ForeseeingSink(Sink, Protocol):
    """A sink that can warn of its destination before the first row comes."""

    def foresee(self, tables: Sequence[Table]) -> Sequence[str]:
        """The worker calls it after ``open``, where nothing is applied yet, with the tables whose rows will come, as rules and
        routes hand them on. Returns sentences for the log. Raises as ``open``."""
        ...


@runtime_checkable
class NamingSink(Sink, Protocol):
    """A sink that puts tables' rows into places whose names it makes of theirs."""

    def place_names(self) -> PlaceNames | None:
        """The worker calls it after ``open``, and refuses tables that would meet. None when all rows go to one place."""
        ...


@runtime_checkable
class AlteredSink(Sink, Protocol):
    """A sink that alters its destination as the source was altered, between the rows before and after that."""

    def apply_ddl(self, definition: PublishedDefinition, position: Position) -> None:
        """Called within ``commit``, in its thread, while that takes ``receipts``: after the receipt before the
        definition was handed over, before the receipt of its own message. So a sink that consumes the receipts in order
        gets it in its place.

        Its effects belong to the batch, as rows do; the same definition can come twice, and holds the whole table from
        there on and before. Raises as ``commit`` may, except RejectedChanges and WriteAgain. Definitions that the
        user's policy leaves out do not come, nor definitions that a copy of the table includes.
        """
        ...


@runtime_checkable
class AcceptingSink(Sink, Protocol):
    """A sink that applies definitions, and needs to know which ones an operator has carried out."""

    def accept(self, definitions: Collection[PublishedDefinition]) -> None:
        """Called before each ``commit`` of a batch with definitions. An operator has carried out ``definitions`` at the
        destination, so the sink alters nothing for them."""
        ...


@runtime_checkable
class DefinedSink(Sink, Protocol):
    """A sink whose writer sees to definitions."""

    @property
    def definitions(self) -> DefinitionUse: ...


Reread = Callable[[PartitionWriter, int, int], Iterator[tuple[bytes, int]]]
"""Called with a writer and the first and the last sequence of messages that are applied: what the writer yields for them, each
with the last message that is covered by then. Rules, routes and dead letters are as for the newest batch. Any thread may call.
Raises MissingMessagesError when they are gone, and whatever reading raises."""


@runtime_checkable
class EventSink(Sink, Protocol):
    """A sink for events, without copied rows: it gets every change in the stream, also the ones that copies include. It
    may need messages again that it has passed."""

    def reread_by(self, reread: Reread) -> None:
        """Called before the first batch, and again when the worker continued after a pause."""
        ...

    def held(self) -> int | None:
        """Returns the message after which messages are still needed, and stay in the stream; None when only unapplied
        ones are."""
        ...


def no_pipeline(sink: str, reason: str) -> TerminalError:
    """Returns the error for rows that begin a run (``CopiedRows.begins_run``), for a sink that cannot apply a row again
    that a later run repeats."""
    return TerminalError(f"{sink} takes no rows of a SQL pipeline: {reason}", "apply them with another sink")
