"""A process that is kept running: which ends it is started again after, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from pgsluice.console.processes.child_process import Command
from pgsluice.console.processes.log_file import LogFile
from pgsluice.console.processes.supervised_process import Ending, SupervisedProcess, describe_exit
from pgsluice.shared.process.retrying import Pauses
from tests.waiting import wait_on_loop

QUICK = Pauses(0.01, 0.05)
PATIENCE_S = 20.0


class Supervised:
    """A shell script under supervision, with what was told of it."""

    def __init__(self, directory: Path, script: str, pauses: Pauses = QUICK, output: int | None = None) -> None:
        self.starts = directory / "starts"
        self.told: list[str] = []
        script = f"echo x >> {self.starts}; count=$(wc -l < {self.starts}); {script}"
        command = Command("shell", ("/bin/sh", "-c", script), {"PATH": os.environ["PATH"]}, LogFile(directory / "log"), output)
        self.process = SupervisedProcess(command, self.told.append, pauses)

    async def run(self) -> Ending:
        return await asyncio.wait_for(self.process.run(), PATIENCE_S)

    def count(self) -> int:
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0

    async def started(self, count: int) -> int:
        """The process's id, when it was started so many times."""
        await wait_on_loop(lambda: self.process.pid is not None and self.count() >= count)
        assert self.process.pid is not None
        return self.process.pid


@pytest.mark.parametrize("exit_code", [0, 2, 70, 1])
async def test_what_would_end_the_same_way_again_is_not_started_again(tmp_path: Path, exit_code: int) -> None:
    supervised = Supervised(tmp_path, f"echo 'INFO one'; echo 'pgsluice: the role may not do it: grant it'; exit {exit_code}")
    ending = await supervised.run()
    assert ending == Ending(
        "shell",
        exit_code,
        "the role may not do it: grant it",
        ("INFO one", "pgsluice: the role may not do it: grant it"),
    )
    assert (supervised.count(), supervised.told) == (1, [])


async def test_what_may_pass_is_started_again_until_it_does(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "if [ $count -lt 4 ]; then echo 'pgsluice: the server is away'; exit 75; fi")
    ending = await supervised.run()
    assert (ending.exit_code, ending.sentence, supervised.count()) == (0, "", 4)
    assert len(supervised.told) == 3
    assert supervised.told[0].startswith("shell ended with exit code 75, and is started again in 0.0 s: the server is away")


async def test_one_that_somebody_killed_comes_back(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "sleep 600")
    running = asyncio.create_task(supervised.run())
    os.kill(await supervised.started(1), signal.SIGKILL)
    await supervised.started(2)
    supervised.process.stop()
    assert (await running).exit_code == -signal.SIGTERM
    assert supervised.told[0].startswith("shell ended by SIGKILL, and is started again in ")


async def test_pauses_grow_and_a_stop_ends_them(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "exit 75", Pauses(0.01, 3600.0))
    running = asyncio.create_task(supervised.run())
    await wait_on_loop(lambda: len(supervised.told) >= 6)
    pauses = [float(sentence.rpartition(" in ")[2].removesuffix(" s")) for sentence in supervised.told]
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    supervised.process.stop()
    assert (await running).exit_code in (0, 75)


async def test_a_stop_lets_it_finish_and_starts_no_other(tmp_path: Path) -> None:
    script = f"trap 'echo finished; exit 75' TERM; touch {tmp_path}/ready; while :; do sleep 0.02; done"
    supervised = Supervised(tmp_path, script)
    running = asyncio.create_task(supervised.run())
    await wait_on_loop((tmp_path / "ready").exists)
    supervised.process.stop()
    ending = await running
    assert (ending.exit_code, ending.last_lines, supervised.count()) == (75, ("finished",), 1)


async def test_one_that_is_stopped_before_it_started_does_not_start(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, "exit 70")
    supervised.process.stop()
    assert (await supervised.run()).exit_code == 0
    assert supervised.count() == 0


async def test_it_is_not_started_again_when_nobody_reads_its_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        supervised = Supervised(tmp_path, "echo 'pgsluice: the reader is gone' >&2; exit 75", output=writer)
        ending = await supervised.run()
    finally:
        os.close(writer)
    assert (ending.exit_code, ending.sentence, supervised.count()) == (75, "the reader is gone", 1)


def test_an_exit_is_told_in_words() -> None:
    assert describe_exit(70) == "with exit code 70"
    assert describe_exit(-9) == "by SIGKILL"
    assert describe_exit(-63) == "by signal 63"
