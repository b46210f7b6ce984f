"""What a command that runs in the tests' own process must not leave behind, or find."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_configuration_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PGSLUICE_CONFIG", raising=False)


@pytest.fixture(autouse=True)
def _restored_logging(logging_as_it_was: None) -> None:
    pass
