"""The tools of others that ``make test-deploy`` installs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers.program import REPOSITORY

TOOLS = REPOSITORY / "build" / "tools" / "bin"


def tool(name: str) -> str:
    """Its path, ours or the system's; skips the test where it is not."""
    path = os.pathsep.join([str(TOOLS), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed: 'make test-deploy' says why")
    return found


def run(name: str, *arguments: str | Path, given: str | None = None) -> str:
    """What the tool printed; fails with all of it."""
    done = subprocess.run([tool(name), *map(str, arguments)], input=given, capture_output=True, text=True)
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout
