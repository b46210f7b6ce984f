"""A sink that is tried: what it promises, the fixtures of its tests, and the batches that suit it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest

from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.table import Table
from pgsluice.testing import tried_batches
from pgsluice.testing.batch import Batch
from pgsluice.testing.destination import Destination
from pgsluice.testing.promises import Promise
from pgsluice.testing.tried_batches import EVENTS, KEYED_EVENTS, LARGE_NOTE
from pgsluice.worker.sinks.sink import Sink


class TriedSink:
    """``large_note`` is a text of which several fill more than one receipt. ``taken_over`` is a pattern of the sink's
    error when another process has moved its position."""

    promises: ClassVar[frozenset[Promise]] = frozenset()
    large_note: ClassVar[bytes] = LARGE_NOTE
    taken_over: ClassVar[str] = ""

    @pytest.fixture
    def sink(self, destination: Destination) -> Iterator[Sink]:
        sink = destination.new_sink()
        sink.open()
        yield sink
        sink.close()

    @pytest.fixture
    def successor(self, destination: Destination, sink: Sink) -> Iterator[Sink]:
        """Yields the sink of the process that is started when ``sink``'s has died; a test opens it when it has."""
        successor = destination.new_sink()
        yield successor
        successor.close()

    @property
    def is_exactly_once(self) -> bool:
        return Promise.EXACTLY_ONCE in self.promises

    @property
    def events_table(self) -> Table:
        """A table, if possible without a key: a change that is applied twice shows twice there."""
        return EVENTS if Promise.TABLES_WITHOUT_KEYS in self.promises else KEYED_EVENTS

    def batch(self, *partitions: Iterable[int], note: bytes = b"n") -> Batch:
        return tried_batches.batch(*partitions, note=note, table=self.events_table)

    def copied_batch(self, *partitions: Iterable[int], note: bytes = b"n", snapshot: str = "first") -> list[list[CopiedRows]]:
        return tried_batches.copied_batch(*partitions, note=note, snapshot=snapshot, table=self.events_table)
