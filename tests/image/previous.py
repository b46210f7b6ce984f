"""The image to upgrade from: PREVIOUS_IMAGE, or this image with the code of the commit PREVIOUS (default: HEAD~1)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.image.engine import IMAGE, Engine, succeed
from tests.servers.program import REPOSITORY
from tests.source_code import PRODUCT

NAME = "localhost/pgsluice:test-previous"


def previous_image(engine: Engine) -> str:
    if named := os.environ.get("PREVIOUS_IMAGE"):
        return named
    commit = os.environ.get("PREVIOUS", "HEAD~1")
    folders = sorted(PRODUCT)
    archive = subprocess.run(["git", "archive", commit, *folders], cwd=REPOSITORY, capture_output=True)
    if archive.returncode != 0:
        pytest.skip(f"no code of {commit}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["tar", "--extract", "--directory", directory], input=archive.stdout, check=True)
        installed = "/opt/pgsluice/lib/python3.11/site-packages/pgsluice"
        copied = "".join(f"COPY {folder} {installed}/{folder}\n" for folder in folders)
        (Path(directory) / "Dockerfile").write_text(f"FROM {IMAGE}\n{copied}")
        succeed(engine.program, "build", "--tag", NAME, directory)
    return NAME
