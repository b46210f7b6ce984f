"""Text that tasks hand to the driver in files: all of it arrives or is asked for again, and nothing of it is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.shared.process.private_directory import LOCK
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import delete, insert, table, update
from pgsluice.worker.sinks.postgres.own import handed_text
from pgsluice.worker.sinks.postgres.own.handed_text import HandoverDirectory, fetch_handed, hand_over
from pgsluice.worker.sinks.postgres.writer import HANDED_FROM_BYTES, MOST_HANDED_PARTITIONS
from pgsluice.worker.sinks.sink import Partition
from tests.worker.sinks.postgres.conftest import Target

ORDERS = table("public.orders", "id bigint", "note text")


@pytest.fixture
def handing(new_target: Callable[..., Target]) -> Target:
    return new_target(0, hands_over=True)


@pytest.fixture
def directory() -> Iterator[HandoverDirectory]:
    made = HandoverDirectory()
    yield made
    made.close()


def files(path: str | Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name != LOCK)


def files_of(target: Target) -> list[str]:
    return files(target.sink.writer().handover)


def test_each_text_is_found_in_the_file_again(directory: HandoverDirectory) -> None:
    texts = [b"first\n", b"", b"x" * 3_000_000, b"last\n"]
    handed = hand_over(directory.path, 7, texts)
    assert [b"".join(fetch_handed(each)) for each in handed] == texts
    assert len({each.path for each in handed}) == 1


def test_only_what_is_applied_is_cleared(directory: HandoverDirectory) -> None:
    texts = {sequence: hand_over(directory.path, sequence, [b"%d" % sequence])[0] for sequence in (7, 8, 12)}
    directory.clear(8)
    assert [*fetch_handed(texts[12])] == [b"12"]
    for sequence in (7, 8):
        with pytest.raises(TransientError, match="written again"):
            [*fetch_handed(texts[sequence])]


def test_a_file_that_is_cut_off_is_asked_for_again(directory: HandoverDirectory) -> None:
    (handed,) = hand_over(directory.path, 1, [b"some rows\n"])
    os.truncate(handed.path, 4)
    with pytest.raises(TransientError, match="written again"):
        [*fetch_handed(handed)]


def test_nobody_else_may_read_the_files_and_they_go_with_the_process(directory: HandoverDirectory) -> None:
    (handed,) = hand_over(directory.path, 1, [b"some rows\n"])
    assert os.stat(handed.path).st_mode & 0o077 == 0
    assert os.stat(directory.path).st_mode & 0o077 == 0
    path = Path(directory.path)
    directory.close()
    assert not path.exists()


def test_shared_memory_without_room_is_not_used(
    directory: HandoverDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(handed_text, "ROOM_BYTES", 1 << 62)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Path(directory.path).parent == tmp_path


def test_rows_that_were_handed_over_are_applied_and_the_files_are_gone(handing: Target) -> None:
    handing.apply_partitions(
        [[insert(ORDERS, b"1", b"a"), insert(ORDERS, b"2", b"b")]],
        [[update(ORDERS, b"1", b"c"), insert(ORDERS, b"3", b"d")], [delete(ORDERS, b"2", None)]],
    )
    assert handing.table("public", "orders") == [("1", "c"), ("3", "d")]
    assert files_of(handing) == []
    assert handing.stages() == []


def test_what_was_handed_over_ahead_stays_when_the_batch_before_it_is_applied(handing: Target) -> None:
    first = handing.write([[insert(ORDERS, b"1", b"a")]])
    second = handing.write([[insert(ORDERS, b"2", b"b")]])
    assert len(files_of(handing)) == 2
    handing.sink.commit(first, STREAM_CREATED)
    assert len(files_of(handing)) == 1
    handing.sink.commit(second, STREAM_CREATED)
    assert handing.table("public", "orders") == [("1", "a"), ("2", "b")]
    assert files_of(handing) == []


def test_a_sink_that_is_closed_leaves_no_file(handing: Target) -> None:
    handing.write([[insert(ORDERS, b"1", b"a")]])
    directory = Path(handing.sink.writer().handover)
    assert files(directory)
    handing.sink.close()
    assert not directory.exists()


def test_a_file_that_is_gone_is_asked_for_again(handing: Target) -> None:
    batch = [handing.messages([insert(ORDERS, b"1", b"a")])]
    receipts = write(handing.sink, batch)
    (name,) = files_of(handing)
    os.unlink(Path(handing.sink.writer().handover) / name)
    with pytest.raises(TransientError, match="written again"):
        handing.sink.commit(receipts, STREAM_CREATED)
    handing.sink.commit(write(handing.sink, batch), STREAM_CREATED)
    assert handing.table("public", "orders") == [("1", "a")]


def test_without_room_for_a_file_the_rows_are_staged(handing: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int, text: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(handed_text, "_write", no_room)
    receipts = handing.write([[insert(ORDERS, b"1", b"a")]])
    assert files_of(handing) == []
    assert len(handing.stages()) == 1
    handing.sink.commit(receipts, STREAM_CREATED)
    assert handing.table("public", "orders") == [("1", "a")]


def test_a_transaction_that_is_too_large_for_files_is_staged(handing: Target) -> None:
    writer = handing.sink.writer()
    for partitions, handed in ((MOST_HANDED_PARTITIONS, 1), (MOST_HANDED_PARTITIONS + 1, 0)):
        list(writer.write(Partition(1, 1, partitions), handing.messages([insert(ORDERS, b"1", b"a")])))
        assert len(files_of(handing)) == 1, "the first is still there, and the second was staged"
        assert len(handing.stages()) == 1 - handed


def test_little_text_travels_in_the_receipt(new_target: Callable[..., Target]) -> None:
    target = new_target(hands_over=True)
    for size, handed in ((HANDED_FROM_BYTES // 2, 0), (HANDED_FROM_BYTES, 1)):
        target.write([[insert(ORDERS, b"1", b"x" * size)]])
        assert len(files_of(target)) == handed
