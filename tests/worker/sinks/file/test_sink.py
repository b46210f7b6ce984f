"""The file sink beyond the contract of all sinks: what is in its directory, and when."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.process.pulse import Pulse
from pgsluice.testing.batch import STREAM_CREATED, apply, write
from pgsluice.testing.tried_batches import LARGE_NOTE, batch, events, position
from pgsluice.worker.sinks.file.output_directory import Layout
from pgsluice.worker.sinks.file.sink import FileSink
from pgsluice.worker.sinks.sink import NOTHING_APPLIED
from tests.waiting import wait_until
from tests.worker.sinks.file.output import (
    LARGE,
    PREFIX,
    STORED_NOTE,
    WORKER,
    Clock,
    file_settings,
    finished_files,
    ids,
    lines,
    names,
    new_sink,
    position_of,
)
from tests.worker.sinks.file.small_disk import small_disk


def test_only_the_owner_may_read_what_is_written(directory: Path, sink: FileSink) -> None:
    apply(sink, batch([1], note=STORED_NOTE))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [directory, *directory.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_a_directory_that_is_there_keeps_its_mode(directory: Path) -> None:
    directory.mkdir(mode=0o750)
    new_sink(directory).open()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o750


def test_who_looks_sees_that_another_process_of_the_worker_is_waited_for(directory: Path, sink: FileSink) -> None:
    successor, pulse = new_sink(directory), Pulse()
    successor.report_to(pulse)
    with Layout(directory, PREFIX.rstrip(".")).locked():
        opening = threading.Thread(target=successor.open, daemon=True)
        opening.start()
        wait = wait_until(lambda: pulse.wait, what="a wait for the other process")
        assert (wait.cause, f"is in {directory}" in wait.reason) == (Cause.OTHER, True)
    opening.join(30)
    assert (opening.is_alive(), pulse.wait) == (False, None)
    with Layout(directory, PREFIX.rstrip(".")).locked():
        committing = threading.Thread(target=apply, args=(successor, batch([1])), daemon=True)
        committing.start()
        assert wait_until(lambda: pulse.wait, what="another wait").cause is Cause.LOCK
    committing.join(30)
    assert (ids(directory), pulse.wait) == (events(1), None)
    successor.close()


def test_the_file_in_progress_is_marked_until_it_is_finished(directory: Path, sink: FileSink) -> None:
    apply(sink, batch([1]))
    assert finished_files(directory) == []
    assert position_of(directory)["file"] == f"{PREFIX}0000000001.jsonl.part"
    sink.close()
    assert [path.name for path in finished_files(directory)] == [f"{PREFIX}0000000001.jsonl"]
    assert names(directory) == {f"{PREFIX}0000000001.jsonl", f"{PREFIX}position", f".{PREFIX}lock"}


def test_the_position_file_says_how_much_of_the_file_in_progress_is_there_to_stay(directory: Path, sink: FileSink) -> None:
    for sequence in (1, 2):
        apply(sink, batch([sequence]))
        record = position_of(directory)
        assert (directory / record["file"]).stat().st_size == record["bytes"]
    assert ids(directory) == events(2)


def test_a_full_file_is_finished_and_another_begun(directory: Path) -> None:
    sink = new_sink(directory, rotate_bytes=3 * len(STORED_NOTE))
    sink.open()
    for sequence in range(1, 8):
        apply(sink, batch([sequence], note=STORED_NOTE))
    sizes = [path.stat().st_size for path in finished_files(directory)]
    assert len(sizes) == 3
    assert all(3 * len(STORED_NOTE) <= size < 5 * len(STORED_NOTE) for size in sizes)
    assert ids(directory) == events(7)
    sink.close()


def test_a_large_batch_fills_several_files(directory: Path) -> None:
    sink = new_sink(directory, rotate_bytes=2_000_000)
    sink.open()
    assert apply(sink, batch(range(1, 9), range(9, 17), note=LARGE_NOTE)) == position(16)
    sizes = [path.stat().st_size for path in finished_files(directory)]
    assert len(sizes) >= 3
    assert all(2_000_000 <= size < 4_000_000 for size in sizes)
    assert ids(directory) == events(16)
    sink.close()


def test_an_old_file_is_finished_when_nothing_comes_any_more(directory: Path) -> None:
    clock = Clock()
    sink = FileSink(WORKER, file_settings(directory, rotate_age_s=60), clock)
    sink.tick()
    sink.open()
    sink.tick()
    apply(sink, batch([1]))
    clock.now += 59
    sink.tick()
    assert finished_files(directory) == []
    clock.now += 1
    sink.tick()
    assert len(finished_files(directory)) == 1
    clock.now += 100
    sink.tick()
    apply(sink, batch([2]))
    assert len(finished_files(directory)) == 1
    assert ids(directory) == events(2)


def test_a_clock_that_was_ahead_keeps_no_file_open(directory: Path) -> None:
    clock = Clock()
    sink = FileSink(WORKER, file_settings(directory, rotate_age_s=60), clock)
    sink.open()
    apply(sink, batch([1]))
    clock.now -= 86_400
    sink.tick()
    assert finished_files(directory)
    apply(sink, batch([2]))
    sink.tick()
    assert len(finished_files(directory)) == 1


def test_an_old_file_is_finished_by_the_batch_that_makes_it_old(directory: Path) -> None:
    clock = Clock()
    sink = FileSink(WORKER, file_settings(directory, rotate_age_s=60), clock)
    sink.open()
    apply(sink, batch([1]))
    clock.now += 60
    apply(sink, batch([2]))
    assert [path.read_bytes().count(b"\n") for path in finished_files(directory)] == [4]


def test_the_age_of_a_file_outlives_its_process(directory: Path) -> None:
    clock = Clock()
    FileSink(WORKER, file_settings(directory, rotate_age_s=60), clock).open()
    sink = FileSink(WORKER, file_settings(directory, rotate_age_s=60), clock)
    sink.open()
    apply(sink, batch([1]))
    clock.now += 60
    successor = FileSink(WORKER, file_settings(directory, rotate_age_s=60), clock)
    successor.open()
    successor.tick()
    assert len(finished_files(directory)) == 1


def test_another_compression_begins_another_file(directory: Path) -> None:
    for sequence, compression in enumerate(("none", "gzip", "gzip", "zstd", "none"), start=1):
        sink = new_sink(directory, compression=compression)
        sink.open()
        apply(sink, batch([sequence]))  # and dies without closing
    new_sink(directory).open()
    assert [path.name.split(".", 3)[3] for path in finished_files(directory)] == ["jsonl", "jsonl.gz", "jsonl.zst"]
    assert ids(directory) == events(5)


def test_lines_of_transactions_are_written_on_request(directory: Path) -> None:
    sink = new_sink(directory, transactions=True)
    sink.open()
    apply(sink, batch([1]))
    assert [line["operation"] for line in lines(directory)] == ["BEGIN", "INSERT", "INSERT", "COMMIT"]


def test_nothing_of_tasks_is_left_behind_a_commit(directory: Path, sink: FileSink) -> None:
    (scratch,) = directory.glob(f".{PREFIX}scratch-*")
    receipts = write(sink, LARGE)
    write(sink, LARGE)  # attempts that Spark did not wait for
    assert len(list(scratch.iterdir())) == 1 + 4
    sink.commit(receipts, STREAM_CREATED)
    assert [path.name for path in scratch.iterdir()] == ["lock"]
    assert ids(directory) == events(5)[2:]


def test_the_scratch_directory_of_a_living_process_is_left_alone(directory: Path, sink: FileSink) -> None:
    receipts = write(sink, LARGE)
    successor = new_sink(directory)
    successor.open()
    assert sink.commit(receipts, STREAM_CREATED).sequence == 5
    successor.close()
    assert ids(directory) == events(5)[2:]


def test_a_task_that_fails_takes_the_output_of_its_batch_with_it(directory: Path, sink: FileSink) -> None:
    def failing() -> Iterator[Any]:
        yield LARGE[0][0]
        raise TransientError("the broker does not answer", "wait")

    (scratch,) = directory.glob(f".{PREFIX}scratch-*")
    receipts = write(sink, LARGE)
    with pytest.raises(TransientError, match="broker"):
        list(sink.writer().write(None, failing()))  # type: ignore[arg-type]
    assert [path.name for path in scratch.iterdir()] == ["lock"]
    with pytest.raises(TransientError, match="no longer in the scratch directory"):
        sink.commit(receipts, STREAM_CREATED)
    assert apply(sink, LARGE).sequence == 5
    assert ids(directory) == events(5)[2:]


def test_a_task_that_does_not_find_the_directory_says_so(directory: Path) -> None:
    sink = new_sink(directory)
    sink.open()
    shutil.rmtree(directory)
    with pytest.raises(TerminalError, match=r"does not find .*run Spark on the worker's machine"):
        write(sink, batch([1]))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("free", [0, 4096, 120_000, 300_000])
def test_a_full_disk_is_waited_for(tmp_path: Path, free: int) -> None:
    """It is full for tasks (120,000 bytes: not all of them), or for the driver (300,000 bytes)."""
    with small_disk(tmp_path / "disk") as leave:
        directory = tmp_path / "disk" / "out"
        sink = new_sink(directory)
        sink.open()
        apply(sink, batch([1]))
        used = sum(path.stat().st_size for path in directory.rglob("*"))
        leave(free)
        for _ in range(3):
            with pytest.raises(TransientError, match=r"there is no room in .* \(No space left on device"):
                apply(sink, LARGE)
            assert ids(directory) == events(1)
            assert sum(path.stat().st_size for path in directory.rglob("*")) == used
        leave(900_000)
        assert apply(sink, LARGE).sequence == 5
        assert ids(directory) == events(5)
        sink.close()


def test_a_file_that_may_not_grow_is_waited_for(directory: Path, sink: FileSink) -> None:
    apply(sink, batch([1]))
    with largest_file(300_000):
        with pytest.raises(TransientError, match=r"there is no room in .* \(File too large"):
            apply(sink, LARGE)
        assert ids(directory) == events(1)
    assert apply(sink, LARGE).sequence == 5
    assert ids(directory) == events(5)


def test_a_directory_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = new_sink(tmp_path / "file" / "out")
    with pytest.raises(TerminalError, match=r"cannot be used \(Not a directory, while opening it\)"):
        sink.open()
    sink.close()


def test_files_without_their_position_are_not_written_over(directory: Path, sink: FileSink) -> None:
    apply(sink, batch([1]))
    sink.close()
    (directory / f"{PREFIX}position").unlink()
    with pytest.raises(TerminalError, match="holds files of worker 'file' of group 'orders', but not its position file"):
        new_sink(directory).open()


def test_committed_bytes_that_are_gone_stop_the_worker(directory: Path, sink: FileSink) -> None:
    apply(sink, batch([1]))
    os.truncate(directory / position_of(directory)["file"], 10)
    with pytest.raises(TerminalError, match=r"holds 10 bytes where .* were committed"):
        apply(sink, batch([2]))
    with pytest.raises(TerminalError, match=r"holds 10 bytes where .* were committed"):
        new_sink(directory).open()


def test_a_position_file_that_is_not_ours_stops_the_worker(directory: Path) -> None:
    directory.mkdir()
    (directory / f"{PREFIX}position").write_text("{}")
    with pytest.raises(TerminalError, match=r"is malformed \(KeyError\)"):
        new_sink(directory).open()


def test_a_position_file_of_a_newer_version_stops_the_worker_and_is_left_alone(directory: Path, sink: FileSink) -> None:
    apply(sink, batch([1]))
    sink.close()
    path = directory / f"{PREFIX}position"
    newer = path.read_text().replace('"format": 1', '"format": 2')
    path.write_text(newer)
    with pytest.raises(TerminalError, match=r"has format 2, and this version reads 1: .*: install that version again"):
        new_sink(directory).open()
    assert path.read_text() == newer != ""


def test_finished_files_may_be_taken_away(directory: Path) -> None:
    sink = new_sink(directory, rotate_bytes=1)
    sink.open()
    apply(sink, batch([1]))
    for path in finished_files(directory):
        path.unlink()
    apply(sink, batch([2]))
    sink.close()
    assert new_sink(directory).open() == position(2)
    assert ids(directory) == events(2)[2:]


def test_two_workers_share_a_directory(directory: Path, sink: FileSink) -> None:
    other = FileSink(replace(WORKER, name="file-2"), file_settings(directory))
    assert other.open() == NOTHING_APPLIED
    apply(sink, batch([1]))
    apply(other, batch([1]))
    apply(sink, batch([2]))
    sink.close()
    other.close()
    assert {path.name for path in directory.glob("*.jsonl")} == {
        f"{PREFIX}0000000001.jsonl",
        "orders.file-2.0000000001.jsonl",
    }
    assert ids(directory) == events(2)
