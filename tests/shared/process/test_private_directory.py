"""A directory that goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pgsluice.shared.process.private_directory import LOCK, make_private_directory

_OWNER = """
import signal, sys
from pathlib import Path
from pgsluice.shared.process.private_directory import make_private_directory
directory = make_private_directory(Path(sys.argv[1]), "mine-")
(directory.path / "file").touch()
print(directory.path, flush=True)
signal.pause()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a directory, which it has printed the path of."""
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def owned(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def test_a_directory_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    directory = make_private_directory(tmp_path, "mine-")
    (directory.path / "below").mkdir()
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_taken_away_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[Path] = []
    make = tempfile.mkdtemp

    def take_away_the_first(**keys: str) -> str:
        path = Path(make(**keys))
        if not gone:
            gone.append(path)
            path.rmdir()
        return str(path)

    monkeypatch.setattr(tempfile, "mkdtemp", take_away_the_first)
    directory = make_private_directory(tmp_path, "mine-")
    assert directory.path.is_dir()
    assert gone != [directory.path]
    directory.close()


def test_a_directory_that_is_taken_away_while_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Path] = []
    lock = fcntl.flock

    def take_away_the_first(descriptor: int, operation: int) -> None:
        lock(descriptor, operation)
        if not gone:
            gone.extend(tmp_path.iterdir())
            shutil.rmtree(gone[0])

    monkeypatch.setattr(fcntl, "flock", take_away_the_first)
    directory = make_private_directory(tmp_path, "mine-")
    assert directory.path.is_dir()
    assert gone != [directory.path]
    directory.close()


def test_the_directory_of_a_process_that_lives_is_left_alone(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    path = owned(owner)
    make_private_directory(tmp_path, "mine-").close()
    assert {each.name for each in path.iterdir()} == {"file", LOCK}


def test_the_directory_of_a_process_that_was_killed_is_removed(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    path = owned(owner)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    (tmp_path / "mine-not").touch()
    (tmp_path / "yours").mkdir()
    assert path.exists()
    make_private_directory(tmp_path, "mine-").close()
    assert {each.name for each in tmp_path.iterdir()} == {"mine-not", "yours"}


def test_a_directory_without_a_lock_is_left_over(tmp_path: Path) -> None:
    (tmp_path / "mine-half-made").mkdir()
    (tmp_path / "mine-half-made" / "file").touch()
    make_private_directory(tmp_path, "mine-").close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_link_names_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "yours").mkdir()
    (tmp_path / "mine-link").symlink_to(tmp_path / "yours")
    make_private_directory(tmp_path, "mine-").close()
    assert {each.name for each in tmp_path.iterdir()} == {"yours", "mine-link"}


def test_many_that_are_made_at_the_same_time_are_never_taken_away_from_their_owners(tmp_path: Path) -> None:
    def make_and_use(_: int) -> bool:
        directory = make_private_directory(tmp_path, "mine-")
        (directory.path / "file").touch()
        is_whole = {each.name for each in directory.path.iterdir()} == {"file", LOCK}
        directory.close()
        return is_whole

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(make_and_use, range(400)))
    assert list(tmp_path.iterdir()) == []
