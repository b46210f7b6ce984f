"""Files that nobody else may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pgsluice.shared.process.private_file import state_home, write_private


def test_only_the_user_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    before = os.umask(0)
    try:
        write_private(path, b"first")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_replaces_what_was_there_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"before")
    path.chmod(0o644)
    write_private(path, b"after")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"after", 0o600)
    assert os.listdir(tmp_path) == ["secret"]


def test_one_that_cannot_take_its_place_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    with pytest.raises(OSError, match="secret"):
        write_private(tmp_path / "secret", b"content")
    assert os.listdir(tmp_path) == ["secret"]


def test_state_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_home() == tmp_path / "pgsluice"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_home() == Path.home() / ".local" / "state" / "pgsluice"
