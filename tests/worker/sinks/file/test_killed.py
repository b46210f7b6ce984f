"""A process that is killed while it writes files: the next one cuts off what does not count, and finishes what does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.sinks.file.sink import FileSink
from tests.worker.sinks.file.dying_process import dies_before_call
from tests.worker.sinks.file.output import (
    LARGE,
    PREFIX,
    STORED_NOTE,
    WORKER,
    Clock,
    file_settings,
    ids,
    names,
    new_sink,
    position_of,
)
from tests.worker.sinks.file.test_parquet import ORDERS, written

BETWEEN = 16
"""Bytes between two ends of lines after which another end is tried."""


def test_whatever_a_killed_process_appended_is_cut_off(directory: Path, sink: FileSink, tmp_path: Path) -> None:
    """Around every end of a line, and at bytes between them."""
    apply(sink, batch([1]))
    other = tmp_path / "other"
    second = new_sink(other)
    second.open()
    apply(second, batch([2]))
    torn = (other / position_of(other)["file"]).read_bytes()
    in_progress = directory / position_of(directory)["file"]
    committed = in_progress.read_bytes()
    shutil.copytree(directory, tmp_path / "committed")
    ends = [0, *(place + 1 for place, byte in enumerate(torn) if byte == ord("\n"))]
    around = {end + step for end in ends for step in (-1, 0, 1)} & set(range(len(torn) + 1))
    for length in sorted({*around, *range(0, len(torn), BETWEEN)}):
        in_progress.write_bytes(committed + torn[:length])
        successor = new_sink(directory)
        assert successor.open() == position(1)
        assert in_progress.read_bytes() == committed
        apply(successor, batch([2]))
        assert ids(directory) == events(2)
        shutil.copy(tmp_path / "committed" / f"{PREFIX}position", directory)


def begin(directory: Path, compression: str) -> None:
    """Applies a batch and does not close."""
    sink = new_sink(directory, compression=compression)
    sink.open()
    apply(sink, batch([1]))


def live_through(directory: Path, compression: str) -> None:
    """One process: opens, applies a batch, finishes a file by its age, closes."""
    clock = Clock()
    sink = FileSink(
        WORKER, file_settings(directory, compression=compression, rotate_bytes=4 * len(STORED_NOTE), rotate_age_s=60), clock
    )
    if sink.open().sequence < 5:
        apply(sink, LARGE)
    clock.now += 60
    sink.tick()
    sink.close()


@pytest.mark.parametrize("compression", ["none", pytest.param("zstd", marks=pytest.mark.long)])
def test_a_process_may_die_before_any_system_call(tmp_path: Path, compression: str) -> None:
    begun = tmp_path / "begun"
    assert not dies_before_call(sys.maxsize, lambda: begin(begun, compression))
    calls = 0
    while True:
        directory = shutil.copytree(begun, tmp_path / str(calls))
        died = dies_before_call(calls, lambda directory=directory: live_through(directory, compression))  # type: ignore[misc]
        if died:
            seen = ids(directory)
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(events(5))
            live_through(directory, compression)
        assert ids(directory) == events(5)
        assert position_of(directory)["sequence"] == 5
        left = {name for name in names(directory) if not name.startswith(f"{PREFIX}00000000")}
        assert left == {f"{PREFIX}position", f".{PREFIX}lock"}
        assert not any(name.endswith(".part") for name in names(directory))
        if not died:
            break
        calls += 1
    assert calls > 25


def live_through_with_parquet(directory: Path) -> None:
    """One process: opens, applies a batch that fills a file, closes."""
    sink = new_sink(directory, file_format="parquet", compression="gzip", rotate_bytes=1000)
    if sink.open().sequence < 3:
        apply(sink, [*batch([2, 3], note=b"x" * 100_000), [message(4, insert(ORDERS, b"1", None, None))]])
    sink.close()


@pytest.mark.long
def test_a_process_that_makes_parquet_may_die_before_any_system_call(tmp_path: Path) -> None:
    """Whatever a reader takes away meanwhile does not come back."""
    calls = 0
    while True:
        directory = tmp_path / str(calls)
        written(directory, batch([1])[0][0])
        died = dies_before_call(calls, lambda directory=directory: live_through_with_parquet(directory))  # type: ignore[misc]
        taken = take_away(directory)
        live_through_with_parquet(directory)
        assert sorted(taken + take_away(directory)) == sorted([1, *events(3)])
        left = {path.name for path in directory.rglob("*") if path.is_file()}
        assert left == {f"{PREFIX}position", f".{PREFIX}lock"}
        if not died:
            break
        calls += 1
    assert calls > 50


def take_away(directory: Path) -> list[int]:
    """The ids in the files that a reader finds, which it removes."""
    taken = []
    for path in directory.glob("*/*.parquet"):
        taken += pq.read_table(path, columns=["id"])["id"].to_pylist()
        path.unlink()
    return taken
