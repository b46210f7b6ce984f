"""The file of a child's log: its end, its lines as they come, its size."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pgsluice.console.processes import log_file
from pgsluice.console.processes.log_file import LogFile, last_sentence


def test_the_last_lines_are_those_since_a_place(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    assert (log.size(), log.last_lines(5)) == (0, [])
    log.path.write_text("a\nb\n")
    place = log.size()
    with log.path.open("a") as file:
        file.write("c\nd\ne\n")
    assert log.last_lines(2) == ["d", "e"]
    assert log.last_lines(9, place) == ["c", "d", "e"]
    assert log.last_lines(9, log.size()) == []


async def test_lines_are_followed_from_now_on_and_only_when_they_are_whole(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.path.write_text("before\n")
    lines = log.follow()
    first = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    descriptor = log.open()
    try:
        os.write(descriptor, b"one\ntw")
        assert await asyncio.wait_for(first, 20) == "one"
        second = asyncio.ensure_future(anext(lines))
        os.write(descriptor, "o\nfünf\n".encode())
        assert await asyncio.wait_for(second, 20) == "two"
        assert await asyncio.wait_for(anext(lines), 20) == "fünf"
    finally:
        os.close(descriptor)


def test_the_sentence_of_an_end_is_found_in_both_forms_of_a_log() -> None:
    assert last_sentence(["INFO x", "pgsluice: a: b", "a warning of the JVM"]) == "a: b"
    assert last_sentence(['{"level":"ERROR","message":"a: b","exit_code":70}']) == "a: b"
    assert last_sentence(['{"exit_code":', "INFO x"]) == ""
    assert last_sentence([]) == ""


def test_a_large_file_is_put_aside_before_the_next_process_writes(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.rotate()
    log.path.write_bytes(b"x" * log_file.ROTATE_BYTES)
    log.rotate()
    assert log.size() == log_file.ROTATE_BYTES
    with log.path.open("ab") as file:
        file.write(b"y")
    log.rotate()
    assert log.size() == 0
    assert (tmp_path / "log.1").stat().st_size == log_file.ROTATE_BYTES + 1
