"""A table that is altered and emptied in one batch, by a worker that dies when it has done both and stored neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message, truncate
from pgsluice.worker.dead_letters.rejection import WriteAgain
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.worker.definitions.definitions_of import ID, NOTE, with_columns
from tests.worker.sinks.search.indexed_table import IndexedTable
from tests.worker.sinks.search.test_altered_indexes import BODY, ITEMS, N, altered, place, rows_of, sink, written

__all__ = ["place", "sink"]

HALF = with_columns(ID, replace(NOTE, name="x"), replace(N, name="note"), BODY, name="items")
SWAPPED = with_columns(ID, replace(NOTE, name="n"), replace(N, name="note"), BODY, name="items")


def test_names_that_changed_places_do_not_do_so_again(place: IndexedTable, sink: SearchSink) -> None:
    """The new and empty index knows which definitions it has."""
    rows = rows_of(SWAPPED)
    first = message(4, altered(ITEMS, HALF), altered(HALF, SWAPPED))
    batch = [[first, message(5, truncate(rows), insert(rows, b"5", b"text", b"50", b"body"))]]
    for _ in range(2):
        with pytest.raises(WriteAgain):
            apply(sink, batch)
    written(place.sink(), batch)
    assert place.documents() == {"5": (5000, {"id": 5, "n": "text", "note": 50, "body": "body"})}
