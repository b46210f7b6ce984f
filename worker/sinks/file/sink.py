"""The file sink's side in the driver: moves the worker's files from one committed state to the next."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import USE_THE_NEWER_VERSION, Cause, PgsluiceError, SinkBehindError, TerminalError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.sinks.file.appending import Appending, open_committed
from pgsluice.worker.sinks.file.applied_position import FilePosition, load_position, new_position, store_position
from pgsluice.worker.sinks.file.formats import PARQUET, formats_by_suffix, new_writer, place_names, suffix_of
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.file.output_directory import FileFormat, Layout, file_errors
from pgsluice.worker.sinks.file.scratch import ScratchDirectory, ScratchWriter, decode_piece
from pgsluice.worker.sinks.lines.line_encoding import LineEncoding
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.sink import Applied, DefinitionUse, Delivery, PartitionWriter, Receipt

log = telemetry.logger(__name__)


class FileSink:
    """Each commit is durable when it returns: first the output, then the position file, by a rename, which commits the
    batch. Files that are full or old enough are finished after that.

    ``tick`` comes from another thread than the rest, hence the mutex; another process is kept out by a lock on a file.
    """

    delivery = Delivery.COLLECTED
    keeps_catch_up = True

    @property
    def definitions(self) -> DefinitionUse:
        """The use of definitions. Rows of another definition begin another Parquet file, which does not contain the
        alteration."""
        if self._settings.format == PARQUET:
            return DefinitionUse.PASSES_OVER
        return LineEncoding.of(self._settings.lines, self._group).definitions

    def __init__(self, settings: WorkerSettings, file_settings: FileSinkSettings, clock: Callable[[], float] = time.time) -> None:
        self._worker = f"'{settings.name}' of group '{settings.group}'"
        self._group = settings.group
        self._settings = file_settings
        self._clock = clock
        self._layout = Layout(Path(file_settings.directory), f"{settings.group}.{settings.name}")
        self._scratch = ScratchDirectory(self._layout.directory, self._layout.prefix)
        self._formats = formats_by_suffix(file_settings)
        self._suffix = suffix_of(file_settings)
        self._process = uuid.uuid4().hex
        self._position: FilePosition | None = None
        """The position as this process knows it; None while the sink is not open."""
        self._is_clean = False
        """True if the directory holds nothing beyond the position."""
        self._mutex = threading.Lock()
        self._pulse = Pulse()

    def report_to(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def open(self) -> Applied:
        directory = self._layout.directory
        with self._mutex, file_errors(directory, "opening it"):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            with self._locked(Cause.OTHER):  # as for the lease of a predecessor: nothing fails
                self._position = self._load()
                self._check_finished(self._position.number)
                self._recover()
                self._adopt_format()
            self._scratch.open()
            return self._position.applied

    def place_names(self) -> PlaceNames | None:
        directory = self._layout.directory
        with file_errors(directory, "looking at it"):
            return place_names(self._settings, directory)

    def renumber(self, applied: Applied) -> None:
        with self._mutex, self._changing("moving the position"):
            self._move(replace(self._current(), applied=applied))

    def writer(self) -> PartitionWriter:
        return new_writer(self._settings, self._group, ScratchWriter(self._scratch.path))

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Commits receipts; skips the ones that are applied already. Raises TransientError when there is no room: what
        was written of the batch is removed at once."""
        with self._mutex, self._changing("writing a batch"):
            position = self._current()
            applied = position.applied
            with self._appending(position) as appending:
                for receipt in receipts:
                    if not applied.covers(receipt):
                        appending.append(decode_piece(receipt.body))
                        applied = applied.after(receipt, stream_created)
                if appending.size and self._is_old(appending.began_at):
                    appending.end_file()
                appending.sync()
            if applied != position.applied:
                self._move(
                    replace(
                        position,
                        applied=applied,
                        number=appending.number,
                        size=appending.size,
                        began_at=appending.began_at,
                    )
                )
            self._scratch.clear()
            return applied

    def tick(self) -> None:
        """Finishes the file in progress when it is old enough. Does nothing while a batch is committed, which does that too."""
        if not self._mutex.acquire(blocking=False):
            return
        try:
            if self._position is not None and self._position.size and self._is_old(self._position.began_at):
                with self._changing("finishing a file"):
                    self._finish_file()
        finally:
            self._mutex.release()

    def finish_copy(self) -> None:
        """Does nothing: a row was final when it was committed."""

    def close(self) -> None:
        """Finishes the file in progress, so that what is applied can be read."""
        with self._mutex:
            position, self._position = self._position, None
            if position is None:
                return
            try:
                with file_errors(self._layout.directory, "closing it"), self._layout.locked():
                    if load_position(self._layout.position) == position:
                        self._position = position
                        self._finish_file()
            except PgsluiceError as error:
                log.warning("the file in progress could not be finished; the next start continues it", reason=str(error))
            finally:
                self._position = None
                with suppress(OSError):  # a successor removes what its owner could not
                    self._scratch.close()

    @contextmanager
    def _changing(self, doing: str) -> Iterator[None]:
        """Keeps other processes out; after an error takes back what was not committed, so that its room is free meanwhile."""
        with file_errors(self._layout.directory, doing), self._locked():
            try:
                yield
            except BaseException:
                self._is_clean = False
                with suppress(OSError, PgsluiceError):  # the original error is more specific; the next call recovers, or raises
                    self._scratch.clear()
                    self._current()
                raise

    @contextmanager
    def _locked(self, cause: Cause = Cause.LOCK) -> Iterator[None]:
        """Locks the directory; notes a wait in the pulse while another process of this worker is in it."""
        wait = TransientError(f"another process of worker {self._worker} is in {self._layout.directory}", cause=cause)
        with self._layout.locked(lambda: self._pulse.waits(wait)) as has_waited:
            if has_waited:
                self._pulse.progressed()
            yield

    def _load(self) -> FilePosition:
        stored = load_position(self._layout.position)
        if stored is not None:
            if stored.suffix not in self._formats:
                raise TerminalError(f"{self._layout.position} names an unknown format", USE_THE_NEWER_VERSION)
            return stored
        if self._layout.holds_files():
            raise TerminalError(
                f"{self._layout.directory} holds files of worker {self._worker}, but not its position file",
                f"restore {self._layout.position.name}, or move the files away to begin with the oldest message of the streams",
            )
        return new_position(self._suffix)

    def _check_finished(self, number: int) -> None:
        """Raises TerminalError for a finished file of that number or a later one: the position moves before a file is
        finished."""
        name, directory = self._layout.finished_from(number), self._layout.directory
        if name is not None:
            raise TerminalError(
                f"{name} in {directory} is finished, and {self._layout.position.name} is older and does not count it",
                "restore the position file and the files of one moment; or move away the files that the position does not count,"
                " which are written again",
            )

    def _current(self) -> FilePosition:
        """Returns the position that a change starts from; nothing is in the directory that it does not count."""
        assert self._position is not None, "open comes first"
        stored = self._load() if self._position.writer else load_position(self._layout.position) or self._position
        if stored != self._position:
            if stored.applied.is_behind(self._position.applied):
                raise SinkBehindError(
                    f"{self._layout.position} was replaced by an older version: it is before the position that this worker wrote",
                    "started again, the worker continues from there, if its files are of the same time",
                )
            if stored.writer != self._process:
                raise TerminalError(
                    f"another process moved the position of worker {self._worker}",
                    "give each worker of a group its own --name; when started again, the worker continues from there",
                )
            self._position = stored  # an error hid that the change was made
            self._is_clean = False
        if not self._is_clean:
            self._recover()
        return self._position

    def _recover(self) -> None:
        """Finishes files that count as finished, and cuts off what does not count."""
        assert self._position is not None
        number, size = self._position.number, self._position.size
        for suffix, file_format in self._formats.items():
            for left in self._layout.part_numbers(suffix):
                if left < number:
                    file_format.finish(self._layout, left)
                elif left > number or not size:
                    file_format.part(self._layout, left).unlink()
        if size:
            os.close(open_committed(self._format.part(self._layout, number), size))
        self._is_clean = True

    def _adopt_format(self) -> None:
        """The file in progress is finished when the settings ask for another format now."""
        assert self._position is not None
        if self._position.suffix != self._suffix:
            self._finish_file(suffix=self._suffix)

    def _finish_file(self, suffix: str = "") -> None:
        position = self._current()
        number = position.number + 1 if position.size else position.number
        moved = replace(position, number=number, size=0, began_at=0.0, suffix=suffix or position.suffix)
        if moved != position:
            self._move(moved)

    def _move(self, position: FilePosition) -> None:
        """Stores ``position``, then finishes the files that it names as finished."""
        assert self._position is not None
        before, finishing = self._position.number, self._format
        position = replace(position, writer=self._process)
        in_progress = self._formats[position.suffix].part(self._layout, position.number)
        store_position(self._layout.position, position, in_progress.name)
        self._position = position
        for number in range(before, position.number):
            finishing.finish(self._layout, number)

    @property
    def _format(self) -> FileFormat:
        assert self._position is not None
        return self._formats[self._position.suffix]

    def _appending(self, position: FilePosition) -> Appending:
        return Appending(self._layout, self._format, self._scratch.path, self._settings.rotate_bytes, position, self._clock)

    def _is_old(self, began_at: float) -> bool:
        """Returns whether a file that began then is old, or begins in the future: the clock was ahead then."""
        return not 0 <= self._clock() - began_at < self._settings.rotate_age_s
