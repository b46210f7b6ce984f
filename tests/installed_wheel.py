"""What ``pip install pgsluice`` makes of this checkout: a wheel, and a virtual environment that holds it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def build_wheel(directory: Path) -> Path:
    """Built without a network from a copy, because setuptools leaves things where it builds, and takes them up again."""
    checkout = directory / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, checkout / name)
    shutil.copytree(REPOSITORY / "pgsluice", checkout / "pgsluice", symlinks=True)
    for link in (REPOSITORY / "pgsluice").iterdir():
        if link.is_symlink():
            shutil.copytree(link.resolve(), checkout / link.name)
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(directory), str(checkout))
    (built,) = directory.glob("*.whl")
    return built


def make_environment(wheel: Path, directory: Path) -> Path:
    """A virtual environment of its own that holds the wheel; what pgsluice depends on is this one's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    pip("--python", str(directory / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    (site_packages,) = directory.glob("lib/python3*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
