"""The search sink in the driver. Tasks have sent what they could by the time a batch is committed.

At least once, with exact effect: the position moves in the state bucket when every document of the batch is stored, and a batch
that comes again changes nothing, because its versions are the same.

A TRUNCATE begins a new and empty generation of the index; its batch is written again then, without what it took. A table that is
copied again fills a generation that takes over when it is whole (``generations``).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, allowed_addresses
from pgsluice.shared.metrics import declared_metrics as metrics
from pgsluice.shared.metrics.metric import SECONDS, Histogram, Sample
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.wire.names import replayed_worker
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, WriteAgain
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.positions.bucket import BucketPositions
from pgsluice.worker.sinks.place_names import PlaceNames
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery, bulk_size
from pgsluice.worker.sinks.search.definitions.altered_tables import AlteredBatch
from pgsluice.worker.sinks.search.definitions.rebuilding import Given, IndexRebuilding
from pgsluice.worker.sinks.search.document_fold import At
from pgsluice.worker.sinks.search.generations import FilledGenerations, copied_tables
from pgsluice.worker.sinks.search.index import IndexCatalog
from pgsluice.worker.sinks.search.index_name import index_names
from pgsluice.worker.sinks.search.mapping_file import load_mapping
from pgsluice.worker.sinks.search.options import OPTIONS, SearchSinkSettings
from pgsluice.worker.sinks.search.patches import PatchDelivery, read_size
from pgsluice.worker.sinks.search.search_receipt import SearchReceipt, check_indexes, summed
from pgsluice.worker.sinks.search.server_connection import ConnectionPool
from pgsluice.worker.sinks.search.task_session import Guide
from pgsluice.worker.sinks.search.writer import SearchWriter
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Delivery, Receipt

REFUSALS_BEFORE_BLAME = 2
"""Refusals of one batch after which the first change of a refused document is named, instead of the last one: each pass
costs."""

OUTCOMES = ("indexed", "deleted", "stale", "retried", "dead")

log = telemetry.logger(__name__)


class SearchSink:
    """Writes to one cluster; the position is in the group's state bucket. Raises UsageError for settings that cannot be meant."""

    delivery = Delivery.COLLECTED
    keeps_catch_up = True
    takes_whole_transactions = True

    def __init__(self, settings: WorkerSettings, search: SearchSinkSettings) -> None:
        self._positions = BucketPositions(settings.nats, settings.group, settings.name)
        self._search = search
        self._overrides = load_mapping(search.mapping_file)
        self._pool: ConnectionPool | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._delivery: BulkDelivery | None = None
        self._bulk_size, self._read_size = bulk_size(search), read_size(search)
        self._catalog: IndexCatalog | None = None
        self._applied = NOTHING_APPLIED
        self._copied: frozenset[int] = frozenset()
        """Oids of tables that had been copied when this process began."""
        self._generations = FilledGenerations(self._new_catalog, self._positions.ledger, search.keep_old_s)
        self._is_replay = replayed_worker(settings.name) != settings.name
        """Dead letters of copied rows belong where the copy went."""
        self._epoch = time.time_ns()
        """Distinguishes sinks: data that tasks have kept of another one is not this one's."""
        self._emptied: dict[str, At] = {}
        """Truncations of the current batch that are carried out, by target."""
        self._refusals = 0
        """Number of times that the server refused documents of the current batch, without failures for a passing cause."""
        self._outcomes: Counter[str] = Counter()
        self._bulk_seconds = Histogram(SECONDS)
        self._mgets = 0
        self._policies = Policies.parse(settings.ddl, settings.ddl_policy)
        self._group = settings.group
        self._given: list[Given] = []
        """Definitions of the current batch."""
        self._altered: AlteredBatch | None = None
        """The current batch, when they are carried out."""
        self._pulse = Pulse()
        self._halted = threading.Event()

    def report_to(self, pulse: Pulse) -> None:
        self._pulse = pulse

    @property
    def task_files(self) -> Sequence[str]:
        return [self._search.ca_file] if self._search.ca_file else []

    def open(self) -> Applied:
        """Resolves the nodes, and asks one of them for its version."""
        for url in self._search.urls:
            receiver = Receiver.parse(url, OPTIONS)
            addresses = allowed_addresses(receiver, AllowedHosts.parse(self._search.allow_hosts, OPTIONS))
            if not receiver.is_tls and not all(address.is_loopback for address in addresses):
                log.warning("the search server is reached without TLS: rows travel in the clear", server=receiver.origin)
        if self._pool is None:
            self._pool = ConnectionPool(self._search)
            self._threads = ThreadPoolExecutor(self._search.connections, "pgsluice-search")
            self._catalog = self._new_catalog()
        assert self._catalog is not None
        self._catalog.server()
        self._applied = self._positions.load()
        self._copied = copied_tables(self._positions.ledger(), self._applied.snapshot_sequence)
        self._generations.look()
        if self._is_replay:
            self._generations.check_none_is_filled()
        return self._applied

    def place_names(self) -> PlaceNames:
        return index_names(self._search)

    def renumber(self, applied: Applied) -> None:
        self._positions.renumber(applied)
        self._applied = applied

    def writer(self) -> SearchWriter:
        """Returns the writer. Copies take over before changes come: they may, when ``finish_copy`` was not called yet."""
        self._take_over()
        blames_first = self._refusals >= REFUSALS_BEFORE_BLAME
        guide = Guide(self._overrides, self._group, self._epoch, self._is_replay, self._copied)
        return SearchWriter(self._search, guide, self._altered, dict(self._emptied), blames_first)

    def apply_ddl(self, definition: PublishedDefinition, position: Position) -> None:
        """Notes a definition, which is carried out when the batch is known to hold no more."""
        self._given.append((definition, position))

    def commit(self, receipts: Iterable[Receipt], stream_created: str) -> Applied:
        """Raises WriteAgain when the batch holds a TRUNCATE or a definition that was not carried out, RejectedChanges when the
        server refuses documents, or the value of a field is not known to anybody; TransientError when an index refuses all of
        them."""
        self._given.clear()
        applied = self._applied
        done: list[SearchReceipt] = []
        sequences: set[int] = set()
        for receipt in receipts:
            if not self._applied.covers(receipt):
                done.append(SearchReceipt.decode(receipt.body))
                sequences.add(receipt.last_sequence)
            applied = applied.after(receipt, stream_created)
        if any(receipt.is_unwritten for receipt in done):
            self._alter(frozenset(sequences))
            raise WriteAgain
        self._count(done)
        self._empty(done)
        self._generations.note(name for receipt in done for name in receipt.filled)
        check_indexes(done)
        self._check([rejection for receipt in done for rejection in receipt.rejections])
        self._check(self._patch(done))
        self._replace(done)
        self._positions.store(applied)
        self._applied = applied
        self._emptied.clear()
        self._altered = None
        self._refusals = 0
        return applied

    def finish_copy(self) -> None:
        """Lets copies take over, also while a batch of other tables is committed."""
        self._take_over()

    def tick(self) -> None:
        if self._threads is not None:
            self._generations.tick(self._threads)

    def break_off(self) -> None:
        self._halted.set()
        delivery = self._delivery
        if delivery is not None:
            delivery.halt()

    def close(self) -> None:
        pool, threads = self._pool, self._threads
        self._pool = self._threads = self._catalog = None
        if threads is not None:
            threads.shutdown(wait=True)
        if pool is not None:
            pool.close()
        self._positions.close()

    def collect(self) -> list[Sample]:
        """Returns the samples since the sink was made."""
        return [
            *(metrics.SEARCH_ITEMS.at(self._outcomes[outcome], outcome) for outcome in OUTCOMES),
            metrics.SEARCH_NULLED.at(self._outcomes["nulled"]),
            metrics.SEARCH_BULK_SECONDS.of(self._bulk_seconds.read()),
            metrics.SEARCH_MGETS.at(self._mgets),
        ]

    def _new_catalog(self) -> IndexCatalog:
        """Returns a catalog for the calling thread."""
        assert self._pool is not None, "open comes first"
        return IndexCatalog(self._pool.mine(), self._search, self._overrides, self._group)

    def _take_over(self) -> None:
        if self._generations.take_over(self._applied.snapshot_sequence):
            self._epoch += 1

    def _count(self, done: Sequence[SearchReceipt]) -> None:
        self._outcomes.update(summed(done))
        for receipt in done:
            for seconds in receipt.bulk_seconds:
                self._bulk_seconds.observe(seconds)

    def _alter(self, sequences: frozenset[int]) -> None:
        """Carries the definitions of the batch out, none of which is written yet."""
        assert self._pool is not None, "open comes first"
        assert self._threads is not None
        assert self._catalog is not None
        self._altered = None
        self._emptied.clear()
        self._delivery = BulkDelivery(self._search, self._pool, self._threads, self._bulk_size)
        keep_old_s = self._search.keep_old_s
        rebuilding = IndexRebuilding(
            self._catalog, self._pool.mine(), self._delivery, self._policies, keep_old_s, self._pulse.moved, self._wait
        )
        try:
            tables = rebuilding.carry_out(self._given)
        finally:
            self._delivery = None
            self._epoch += 1
        self._altered = AlteredBatch(sequences, tables)

    def _wait(self, error: TransientError) -> None:
        """Waits when an index cannot be rebuilt; a delivery has waited long before it raises."""
        if self._halted.is_set():
            raise error
        self._pulse.waits(error)

    def _empty(self, done: Sequence[SearchReceipt]) -> None:
        """Empties tables; of several truncations of a table only the last one is carried out."""
        assert self._catalog is not None, "open comes first"
        last = {self._catalog.alias(each.table): each for receipt in done for each in receipt.emptyings}
        for emptying in last.values():
            made = self._catalog.replace(emptying.table)
            self._emptied[made.write_alias] = emptying.at
            self._epoch += 1
        if last:
            raise WriteAgain

    def _replace(self, done: Sequence[SearchReceipt]) -> None:
        """Replaces rows by those of a pipeline's completed run."""
        for receipt in done:
            for table, snapshot in receipt.replaced:
                self._generations.replace(table, snapshot)
                self._epoch += 1

    def _check(self, rejections: Sequence[Rejection]) -> None:
        """Raises RejectedChanges when there is any."""
        if rejections:
            self._refusals += 1
            raise RejectedChanges(sorted(rejections, key=lambda each: each.position))

    def _patch(self, done: Sequence[SearchReceipt]) -> list[Rejection]:
        if not any(receipt.patches or receipt.vacated for receipt in done):
            return []
        assert self._pool is not None, "open comes first"
        assert self._threads is not None
        self._delivery = BulkDelivery(self._search, self._pool, self._threads, self._bulk_size)
        patching = PatchDelivery(self._pool.mine(), self._delivery, self._read_size)
        try:
            rejections = [each for receipt in done for each in patching.deliver(receipt.patches, receipt.vacated)]
            check_indexes([*done, self._delivery.tally])
            return rejections
        finally:
            self._mgets += patching.mgets
            self._outcomes.update(self._delivery.tally.outcomes)
            self._delivery = None
