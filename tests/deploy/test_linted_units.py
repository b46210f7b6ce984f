"""The units as systemd's own linter sees them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.test_units import UNITS
from tests.deploy.tools import run

pytestmark = pytest.mark.deploy

MOST_EXPOSED = 20
"""Tenths, of 100: systemd calls what is below "OK"."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units with a program that is there: verification looks for it."""
    directory = tmp_path / "units"
    shutil.copytree(UNITS, directory)
    for path in directory.glob("*.service"):
        path.write_text(path.read_text().replace("/opt/pgsluice/bin/pgsluice", "/bin/true"))
    return directory


@pytest.mark.parametrize("role", ["replicator", "worker"])
def test_systemd_has_nothing_to_say_against_a_unit(role: str, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", f"{installed}:")
    instance = shutil.copy(installed / f"pgsluice-{role}@.service", installed / f"pgsluice-{role}@shop.service")
    verify = ["systemd-analyze", "verify", "--man=no", str(instance)]
    if shutil.which(verify[0]) is None:
        pytest.skip("systemd is not installed here")
    done = subprocess.run(verify, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if str(installed) in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("role", ["replicator", "worker"])
def test_a_unit_is_hardened_by_the_drop_in(role: str, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", f"{installed}:")
    unit = installed / f"pgsluice-{role}@.service"
    run("systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit)
