"""Results of tasks in files; without Spark, which only brings the paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.shared.spark import filed_results as module
from pgsluice.shared.spark.filed_results import FiledTask, filed_results


def numbered(count: int) -> Iterator[tuple[int, bytes]]:
    for number in range(count):
        yield number, b"x" * (number * 100_000)


def failing(count: int) -> Iterator[int]:
    yield from range(count)
    raise ValueError


@pytest.mark.parametrize("count", [0, 1, 20])
def test_results_come_as_they_were_and_the_file_is_gone_before_the_first(tmp_path: Path, count: int) -> None:
    (path,) = FiledTask(numbered, (tmp_path,))(count)
    results = filed_results(path)
    assert not [*tmp_path.iterdir()]
    assert list(results) == [*numbered(count)]


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    (path,) = FiledTask(numbered, (tmp_path,))(1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the task's own
        list(FiledTask(failing, (tmp_path,))(3))
    assert not [*tmp_path.iterdir()]


def test_where_shared_memory_has_little_room_they_are_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, temporary = tmp_path / "memory", tmp_path / "temporary"
    memory.mkdir()
    temporary.mkdir()
    task = FiledTask(numbered, (memory, temporary))
    assert Path(*task(1)).parent == memory
    monkeypatch.setattr(module, "ROOM_BYTES", 1 << 62)
    assert Path(*task(1)).parent == temporary
