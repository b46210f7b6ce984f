"""Files and position files that were put back to an earlier state: the worker goes on from there, or says what does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgsluice.shared.errors import SinkBehindError, TerminalError
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch, events, position
from tests.worker.sinks.file.output import LARGE, PREFIX, finished_files, ids, names, new_sink


def applied(directory: Path, *sequences: int) -> None:
    """By a process of its own, which is killed. Each batch begins another file."""
    sink = new_sink(directory, rotate_bytes=1)
    sink.open()
    for sequence in sequences:
        apply(sink, batch([sequence]))
    del sink


def test_a_directory_that_was_restored_as_a_whole_is_gone_on_with_from_there(directory: Path, tmp_path: Path) -> None:
    applied(directory, 1, 2)
    shutil.copytree(directory, tmp_path / "older")
    applied(directory, 3)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "older", directory)
    sink = new_sink(directory, rotate_bytes=1)
    assert sink.open() == position(2)
    for sequence in (3, 4):
        apply(sink, batch([sequence]))
    sink.close()
    assert ids(directory) == events(4)


@pytest.mark.parametrize("settings", [{}, {"file_format": "parquet", "compression": "zstd"}])
def test_a_position_file_that_is_older_than_finished_files_stops_the_start(
    directory: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    """What they hold would be written again, in other files."""
    sink = new_sink(directory, rotate_bytes=1, **settings)
    sink.open()
    apply(sink, batch([1]))
    shutil.copy(directory / f"{PREFIX}position", tmp_path / "older")
    apply(sink, batch([2]))
    sink.close()
    shutil.copy(tmp_path / "older", directory / f"{PREFIX}position")
    before = names(directory)
    for _ in range(2):
        with pytest.raises(TerminalError, match=rf"{PREFIX}0000000002.* is finished.*restore .* of one moment"):
            new_sink(directory, rotate_bytes=1, **settings).open()
    assert names(directory) == before


def test_a_position_file_that_is_older_than_the_file_in_progress_takes_that_back(directory: Path, tmp_path: Path) -> None:
    sink = new_sink(directory)
    sink.open()
    apply(sink, batch([1]))
    shutil.copy(directory / f"{PREFIX}position", tmp_path / "older")
    apply(sink, batch([2]))
    del sink
    shutil.copy(tmp_path / "older", directory / f"{PREFIX}position")
    successor = new_sink(directory)
    assert successor.open() == position(1)
    for sequence in (2, 3):
        apply(successor, batch([sequence]))
    successor.close()
    assert ids(directory) == events(3)


def test_a_position_file_that_is_put_back_under_a_worker_ends_it_and_the_next_one_goes_on_from_there(
    directory: Path, tmp_path: Path
) -> None:
    sink = new_sink(directory)
    sink.open()
    apply(sink, batch([1]))
    shutil.copy(directory / f"{PREFIX}position", tmp_path / "older")
    apply(sink, batch([2]))
    shutil.copy(tmp_path / "older", directory / f"{PREFIX}position")
    with pytest.raises(SinkBehindError, match="replaced by an older version"):
        apply(sink, batch([3]))
    sink.close()
    successor = new_sink(directory)
    assert successor.open() == position(1)
    for sequence in (2, 3):
        apply(successor, batch([sequence]))
    successor.close()
    assert ids(directory) == events(3)


def test_a_file_that_was_restored_with_less_than_counts_stops_the_worker(directory: Path, tmp_path: Path) -> None:
    sink = new_sink(directory)
    sink.open()
    apply(sink, batch([1]))
    [part] = directory.glob(f"{PREFIX}*.part")
    shutil.copy(part, tmp_path / "older")
    apply(sink, batch([2]))
    del sink
    shutil.copy(tmp_path / "older", part)
    with pytest.raises(TerminalError, match=r"holds \d+ bytes where \d+ were committed"):
        new_sink(directory).open()


def test_a_finished_file_that_was_restored_or_taken_away_is_not_noticed(directory: Path) -> None:
    """It is its readers'."""
    sink = new_sink(directory, rotate_bytes=1)
    sink.open()
    apply(sink, LARGE[:1])
    finished_files(directory)[0].write_bytes(b"")
    sink.close()
    assert new_sink(directory, rotate_bytes=1).open() == position(3)
