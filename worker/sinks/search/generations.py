"""Generations that copies fill while another one is read: they take over when the copy is whole, and replaced ones go later.

The generations being filled are known by the indexes themselves (``IndexMeta``), whether a copy is whole by the ledger,
and whether all of its rows are here by the worker's position. So it does not matter which process filled a generation.
Until it takes over, searches find the state when the worker began to leave the table's changes out; the new generation
is as of the snapshot, which is later.

A copy that is begun again has another snapshot, and fills another generation. The one that it had filled before was
never read, and goes when the whole one takes over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future

from pgsluice.shared import telemetry
from pgsluice.shared.broker.ledger import LedgerContent, Phase, TableRecord
from pgsluice.shared.errors import Cause, TransientError
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.search.index import FoundGeneration, IndexCatalog
from pgsluice.worker.sinks.search.index_name import Generation

SWEEP_INTERVAL_S = 60.0

_COPYING = (Phase.DATA_SYNC, Phase.FINISHED_COPY)

log = telemetry.logger(__name__)


class FilledGenerations:
    """``catalog`` makes one for the calling thread, ``ledger`` asks what is known of some tables by their oids; both may raise
    TransientError. For any thread."""

    def __init__(
        self, catalog: Callable[[], IndexCatalog], ledger: Callable[[Iterable[int]], LedgerContent], keep_old_s: float
    ) -> None:
        self._catalog = catalog
        self._ledger = ledger
        self._keep_old_s = keep_old_s
        self._filling: set[Generation] = set()
        self._lock = threading.Lock()
        self._swept_at = time.monotonic()
        self._sweeping: Future[None] | None = None

    def look(self) -> None:
        """Finds generations that an earlier process left unread."""
        metas = self._catalog().metas()
        named = ((Generation.named(name), meta) for name, meta in metas.items() if meta.is_filling and meta.snapshot)
        with self._lock:
            self._filling |= {generation for generation, _ in named if generation is not None}

    def note(self, names: Iterable[str]) -> None:
        """Generations, by the names of their indexes, that took copied rows."""
        with self._lock:
            self._filling |= {found for name in names if (found := Generation.named(name)) is not None}

    def take_over(self, snapshot_sequence: int) -> bool:
        """Has generations read whose copies are whole, with all their rows at that message of the snapshot stream or before.
        Whether there was any. Raises TransientError, and TerminalError."""
        with self._lock:
            if not self._filling:
                return False
            catalog, taken_over = self._catalog(), False
            filling = self._still_filling(catalog)
            ledger = self._ledger(found.meta.oid for found in filling)
            for found in filling:
                if found.is_read or _is_whole(found, ledger, snapshot_sequence):
                    self._replace(catalog, found)
                    self._filling.discard(found.generation)
                    taken_over = True
            return taken_over

    def replace(self, table: Table, snapshot: str) -> None:
        """Makes the rows of a pipeline's run replace all others. The replaced generation stays as configured, but not
        the one that it replaced: runs can come often. May be repeated. Raises as ``take_over``."""
        with self._lock:
            catalog = self._catalog()
            alias = catalog.alias(table)
            for found in catalog.generations(alias):
                if found.meta.snapshot == snapshot and found.meta.is_filling:
                    self._replace(catalog, found)
            replaced = [each for each in catalog.generations(alias) if not each.is_read and each.meta.delete_after]
            for found in replaced[:-1]:
                catalog.remove(found)

    def check_none_is_filled(self) -> None:
        """Raises TransientError while a copy fills a generation, or one that it filled has not taken over."""
        with self._lock:
            if not self._filling:
                return
            filling = self._still_filling(self._catalog())
            ledger = self._ledger(found.meta.oid for found in filling)
            for found in filling:
                if not found.is_read and _counts(found, ledger):
                    fact = f"index '{found.generation.name}' is being filled"
                    raise TransientError(fact, "its documents wait until it is searched", Cause.TARGET)

    def _still_filling(self, catalog: IndexCatalog) -> list[FoundGeneration]:
        """Returns them in the sequence in which they must take over; forgets others."""
        aliases = sorted({generation.alias for generation in self._filling})
        found = [each for alias in aliases for each in catalog.generations(alias)]
        found = [each for each in found if each.generation in self._filling and each.meta.is_filling]
        self._filling = {each.generation for each in found}
        return found

    def tick(self, threads: Executor) -> None:
        """Removes old generations now and then, in one of ``threads``. Raises what went wrong there the last time."""
        if self._sweeping is not None and self._sweeping.done():
            sweeping, self._sweeping = self._sweeping, None
            sweeping.result()
        if self._sweeping is None and time.monotonic() - self._swept_at >= SWEEP_INTERVAL_S:
            self._swept_at = time.monotonic()
            self._sweeping = threads.submit(self.sweep)

    def sweep(self) -> None:
        """Removes generations whose time has come."""
        catalog, now = self._catalog(), time.time()
        for name, meta in catalog.metas().items():
            generation = Generation.named(name)
            if generation is not None and 0 < meta.delete_after <= now:
                self._remove_unread(catalog, generation)

    def _remove_unread(self, catalog: IndexCatalog, generation: Generation) -> None:
        """Removes generations that are unread. An operator may have given the alias back to an old one."""
        for found in catalog.generations(generation.alias):
            if found.generation == generation and not found.is_read and catalog.remove(found):
                log.info("an old index is removed", index=generation.name)

    def _replace(self, catalog: IndexCatalog, found: FoundGeneration) -> None:
        """Makes a generation the read one. May be repeated: that it is filled is noted last."""
        catalog.begin_reading(found)
        log.info("a new index is searched from now on", index=found.generation.name, table=found.table)
        for other in catalog.generations(found.generation.alias):
            if other.is_read or other.meta.delete_after:
                continue
            if other.meta.is_filling or not self._keep_old_s:
                catalog.remove(other)
            else:
                catalog.note(other, other.meta.to_be_deleted(int(time.time() + self._keep_old_s)))
        catalog.note(found, found.meta.is_read_now())


def copied_tables(ledger: LedgerContent, snapshot_sequence: int) -> frozenset[int]:
    """Returns the oids of tables whose copies are whole, with all their rows at that message of the snapshot stream or before."""
    return frozenset(oid for oid, record in ledger.tables.items() if _has_whole_copy(record, ledger, snapshot_sequence))


def _has_whole_copy(record: TableRecord, ledger: LedgerContent, snapshot_sequence: int) -> bool:
    if record.phase is not Phase.FINISHED_COPY:
        return False
    last = ledger.last_copied(record)
    return last is not None and last <= snapshot_sequence


def _counts(found: FoundGeneration, ledger: LedgerContent) -> bool:
    """Returns whether its snapshot is the newest of the table, and its copy has not failed."""
    record = ledger.tables.get(found.meta.oid)
    return record is not None and record.phase in _COPYING and record.snapshot == found.meta.snapshot


def _is_whole(found: FoundGeneration, ledger: LedgerContent, snapshot_sequence: int) -> bool:
    record = ledger.tables.get(found.meta.oid)
    return record is not None and _counts(found, ledger) and _has_whole_copy(record, ledger, snapshot_sequence)
