"""The directory of ``pgsluice up``: who may look into it, and that one at a time uses it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgsluice.console.up.state_directory import locked, prepare, usual_directory
from pgsluice.shared.errors import TerminalError

HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_it_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = usual_directory("shop")
    assert path == tmp_path / "state" / "pgsluice" / "up" / "shop"
    assert prepare(path).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_one_that_others_can_look_into_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(TerminalError, match="is open to others: chmod 700"):
        prepare(tmp_path / "state")


def test_a_path_that_cannot_be_made_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TerminalError, match=r"cannot be made \(NotADirectoryError\): give another --state-dir"):
        prepare(tmp_path / "file" / "state")


def test_a_second_one_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "state"),
        pytest.raises(TerminalError, match=rf"another 'pgsluice up' \(process {os.getpid()}\) uses"),
        locked(tmp_path / "state"),
    ):
        pass
    with locked(tmp_path / "state"):  # free again
        pass


def test_what_a_killed_one_left_behind_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path / "state"):
        pass
    lock = tmp_path / "state" / "lock"
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    lock.write_text(gone.stdout.strip())
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    ender = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.5; kill {holder.pid}"])
    with locked(tmp_path / "state") as state:
        assert holder.wait(20) != 0
        with pytest.raises(BlockingIOError):
            fcntl.flock(os.open(lock, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert state.path == tmp_path / "state"
    ender.wait(20)
    assert "waiting until processes of an earlier 'pgsluice up'" in capfd.readouterr().err
