"""The container files, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgsluice.shared.config import make
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from tests.configuration import load_from

REPOSITORY = Path(__file__).resolve().parents[1]
DOCKER = REPOSITORY / "docker"


def service(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"][name]
    return content


def environment(name: str, tmp_path: Path) -> dict[str, str]:
    """The service's environment, with the files that exist only in its container replaced by ones that exist here."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    here = {"PGSLUICE_CONFIG": str(DOCKER / "pgsluice.yaml")}
    return {
        variable: str(password) if variable.endswith("_PASSWORD_FILE") else here.get(variable, value)
        for variable, value in service(name)["environment"].items()
    }


@pytest.mark.parametrize("name", ["source", "target", "nats", "replicator", "worker"])
def test_every_service_restarts_and_keeps_its_data_in_a_volume(name: str) -> None:
    assert service(name)["restart"] == "unless-stopped"
    assert service(name)["volumes"]


@pytest.mark.parametrize("name", ["replicator", "worker"])
def test_a_service_is_given_the_time_to_stop_that_the_documents_name(name: str) -> None:
    documents = {
        "how-to/operate.md": r"let a supervisor wait for (\d+) s before SIGKILL",
        "reference/exit-codes.md": r"TimeoutStopSec=(\d+)",
    }
    found = {path: re.search(pattern, (REPOSITORY / "docs" / path).read_text()) for path, pattern in documents.items()}
    named = {path: f"{match[1]}s" for path, match in found.items() if match is not None}
    assert named == dict.fromkeys(documents, service(name)["stop_grace_period"])


@pytest.mark.parametrize("name", ["source", "target", "nats"])
def test_every_server_has_a_healthcheck_that_others_wait_for(name: str) -> None:
    assert service(name)["healthcheck"]["test"][0] == "CMD"
    dependents = [other for other in ("replicator", "worker") if name in service(other)["depends_on"]]
    assert dependents
    assert all(service(other)["depends_on"][name] == {"condition": "service_healthy"} for other in dependents)


def test_files_that_are_mounted_exist() -> None:
    mounted = re.findall(r"- \./(\S+?):", (DOCKER / "compose.yaml").read_text())
    assert mounted
    assert all((DOCKER / name).is_file() for name in mounted)


def test_the_replicator_service_is_configured_completely(tmp_path: Path) -> None:
    settings = make(ReplicatorSettings, load_from({}, environment("replicator", tmp_path), ReplicatorSettings))
    assert (settings.group, settings.source.host, settings.source.password) == ("shop", "source", "secret")


def test_the_worker_service_is_configured_completely(tmp_path: Path) -> None:
    values = load_from({}, environment("worker", tmp_path), WorkerSettings, PostgresSinkSettings)
    assert make(WorkerSettings, values).spark["spark.master"] == "local[2]"
    assert make(PostgresSinkSettings, values).target.host == "target"


def test_the_image_holds_every_package_and_nothing_of_the_tests() -> None:
    packages = {"pgsluice"} | {path.name for path in (REPOSITORY / "pgsluice").iterdir() if path.is_symlink()}
    copied = {
        line.split()[1] for line in (DOCKER / "Dockerfile").read_text().splitlines() if re.fullmatch(r"COPY [a-z]+ [a-z]+", line)
    }
    sent = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if re.fullmatch(r"![a-z]+", line)}
    assert copied == sent == packages


def test_the_image_is_built_with_what_the_package_s_description_names() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = {project["readme"], *project["license-files"]}
    copied = re.search(r"^COPY (README\.md .*) \./$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert copied is not None
    assert set(copied[1].split()) == named
    assert {f"!{name}" for name in named} <= set((REPOSITORY / ".dockerignore").read_text().splitlines())


def test_the_image_does_not_run_as_root() -> None:
    assert re.search(r"^USER pgsluice$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)


def test_files_beside_the_code_are_part_of_the_package() -> None:
    """A wheel holds Python files only, unless pyproject.toml names the others."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    named = {
        f"{package.replace('.', '/')}/{pattern}" for package, patterns in settings["package-data"].items() for pattern in patterns
    }
    for package in ("shared", "replicator", "rules", "worker", "console"):
        others = [path for path in (REPOSITORY / package).rglob("*.*") if path.suffix not in {".py", ".pyc"}]
        assert {f"pgsluice/{path.relative_to(REPOSITORY)}" for path in others} <= named
