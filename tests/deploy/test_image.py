"""The image: linted, and where a container engine runs, built and started."""

from __future__ import annotations

import subprocess

import pytest

from tests.deploy.tools import run, tool
from tests.servers.program import REPOSITORY

pytestmark = pytest.mark.deploy

DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
IMAGE = "pgsluice:test-deploy"
LIMITS = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


def test_the_linter_has_nothing_to_say_of_the_dockerfile() -> None:
    assert run("hadolint", DOCKERFILE) == ""


@pytest.mark.timeout(1800)
def test_the_image_is_built_and_runs_without_root_on_a_read_only_root() -> None:
    reached = subprocess.run([tool("docker"), "info"], capture_output=True, text=True)
    if reached.returncode != 0:
        pytest.skip(f"no container engine: {reached.stderr.strip()}")
    run("docker", "buildx", "build", "--load", "--file", DOCKERFILE, "--tag", IMAGE, REPOSITORY)
    try:
        assert run("docker", "run", "--rm", *LIMITS, IMAGE, "--version").startswith("pgsluice ")
        assert run("docker", "run", "--rm", *LIMITS, "--entrypoint", "id", IMAGE, "--user").strip() == "10001"
    finally:
        run("docker", "image", "rm", IMAGE)
