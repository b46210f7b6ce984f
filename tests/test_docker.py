"""The container files, as far as they can be checked without a container engine; ``tests/image`` needs one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from pgsluice.shared.config import make
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from tests.configuration import load_from
from tests.misses import no_misses
from tests.source_code import PRODUCT, REPOSITORY, relative

DOCKER = REPOSITORY / "docker"


def services() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return content


def service(name: str) -> dict[str, Any]:
    return services()[name]


def roles() -> set[str]:
    """The services that run a process of ours; the others are servers."""
    return {name for name, content in services().items() if content["image"].startswith("pgsluice:")}


def environment(name: str, tmp_path: Path) -> dict[str, str]:
    """The service's environment, with the files that exist only in its container replaced by ones that exist here."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    here = {"PGSLUICE_CONFIG": str(DOCKER / "pgsluice.yaml")}
    return {
        variable: str(password) if variable.endswith("_PASSWORD_FILE") else here.get(variable, value)
        for variable, value in service(name)["environment"].items()
    }


def test_every_service_restarts_and_keeps_its_data_in_a_volume() -> None:
    unlike = (name for name, each in services().items() if each["restart"] != "unless-stopped" or not each["volumes"])
    no_misses(unlike, "give the service of docker/compose.yaml 'restart: unless-stopped' and a volume")


def test_a_role_is_given_the_time_to_stop_that_the_documents_name() -> None:
    documents = {
        "how-to/operate.md": r"let a supervisor wait for (\d+) s before SIGKILL",
        "reference/exit-codes.md": r"TimeoutStopSec=(\d+)",
    }
    found = {path: re.search(pattern, (REPOSITORY / "docs" / path).read_text()) for path, pattern in documents.items()}
    named = {path: f"{match[1]}s" for path, match in found.items() if match is not None}
    periods = {f"service {name}": service(name)["stop_grace_period"] for name in roles()}
    assert len({*named.values(), *periods.values()}) == 1, f"they are to agree: {named | periods}"
    assert named.keys() == documents.keys()


def test_every_server_has_a_healthcheck_that_others_wait_for() -> None:
    for name in services().keys() - roles():
        assert service(name)["healthcheck"]["test"][0] == "CMD", name
        conditions = [service(role)["depends_on"][name] for role in roles() if name in service(role)["depends_on"]]
        assert conditions, f"no role waits for {name}"
        assert all(condition == {"condition": "service_healthy"} for condition in conditions), name


def test_a_role_is_healthy_when_its_endpoint_says_that_it_is_ready() -> None:
    listen = yaml.safe_load((DOCKER / "pgsluice.yaml").read_text())["metrics-listen"]
    address = f"http://127.0.0.1:{listen.rpartition(':')[2]}/readyz"
    no_misses((name for name in roles() if address not in service(name)["healthcheck"]["test"][-1]), f"does not ask {address}")


def test_secrets_are_files_which_every_compose_gives() -> None:
    """podman-compose knows no others. Whoever makes them reads their names in the file's first lines."""
    text = (DOCKER / "compose.yaml").read_text()
    found = re.search(r"for name in ([a-z ]+); do openssl rand -hex 16 > (\S+); done", text)
    assert found is not None
    made = {f"./{found[2].replace('$name', name)}" for name in found[1].split()}
    assert made == {secret["file"] for secret in yaml.safe_load(text)["secrets"].values()}


def test_files_that_are_mounted_exist() -> None:
    mounted = re.findall(r"- \./(\S+?):", (DOCKER / "compose.yaml").read_text())
    assert mounted
    no_misses((name for name in mounted if not (DOCKER / name).is_file()), "mounted by compose.yaml, and not in docker/")


def test_the_replicator_service_is_configured_completely(tmp_path: Path) -> None:
    settings = make(ReplicatorSettings, load_from({}, environment("replicator", tmp_path), ReplicatorSettings))
    assert (settings.group, settings.source.host, settings.source.password) == ("shop", "source", "secret")
    assert (settings.nats.user, settings.nats.password) == ("pgsluice", "secret")


def test_the_worker_service_is_configured_completely(tmp_path: Path) -> None:
    values = load_from({}, environment("worker", tmp_path), WorkerSettings, PostgresSinkSettings)
    assert make(WorkerSettings, values).spark["spark.master"] == "local[2]"
    assert make(PostgresSinkSettings, values).target.host == "target"


def test_the_image_holds_every_package_and_nothing_of_the_tests() -> None:
    packages = {"pgsluice", *PRODUCT}
    copied = {
        line.split()[1] for line in (DOCKER / "Dockerfile").read_text().splitlines() if re.fullmatch(r"COPY [a-z]+ [a-z]+", line)
    }
    sent = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if re.fullmatch(r"![a-z]+", line)}
    no_misses(copied ^ packages, "copied by docker/Dockerfile and no package, or the other way round")
    no_misses(sent ^ packages, "let through by .dockerignore and no package, or the other way round")


def test_the_image_is_built_with_what_the_package_s_description_names() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = {project["readme"], *project["license-files"]}
    copied = re.search(r"^COPY pyproject\.toml (README\.md .*) \./$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert copied is not None
    assert set(copied[1].split()) == named
    assert {f"!{name}" for name in named} <= set((REPOSITORY / ".dockerignore").read_text().splitlines())


def test_the_image_installs_nothing_that_is_not_locked() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    copied = {each for line in re.findall(r"^COPY .*$", text, re.MULTILINE) for each in re.findall(r"requirements/\S+", line)}
    assert copied == {"requirements/build.txt", "requirements/dev.txt"}
    assert {f"!{name}" for name in copied} <= set((REPOSITORY / ".dockerignore").read_text().splitlines())
    installing = re.findall(r"pip (?:install|wheel) (.*?)(?: \\)?$", text, re.MULTILINE)
    ours = "--no-deps --no-build-isolation --wheel-dir /wheel .", "--no-deps /wheel/*.whl"
    loose = (line for line in installing if "--require-hashes" not in line and not line.startswith(ours))
    no_misses(loose, "of docker/Dockerfile: install what requirements/ names, by its hashes, or our code alone")


def test_the_image_does_not_run_as_root() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    account, user = re.search(r"useradd --uid (\d+) ", text), re.search(r"^USER (\d+)$", text, re.MULTILINE)
    assert account is not None
    assert user is not None
    assert account[1] == user[1] != "0"


def test_a_role_writes_to_nothing_but_temporary_places() -> None:
    """tests/image/test_compose.py runs both roles so."""
    wanted = {"read_only": True, "tmpfs": ["/tmp"], "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    assert roles()
    unlike = (f"{name}: {key}" for name in roles() for key, value in wanted.items() if service(name).get(key) != value)
    no_misses(unlike, f"give the service of docker/compose.yaml what all roles have: {wanted}")


def test_files_beside_the_code_are_part_of_the_package() -> None:
    """A wheel holds Python files only, unless pyproject.toml names the others."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    named = [
        f"{package.replace('.', '/')}/{pattern}" for package, patterns in settings["package-data"].items() for pattern in patterns
    ]
    others = [path for package in PRODUCT for path in (REPOSITORY / package).rglob("*.*") if path.suffix not in {".py", ".pyc"}]
    left_out = (relative(path) for path in others if not any(fnmatch(f"pgsluice/{relative(path)}", pattern) for pattern in named))
    no_misses(left_out, "not in the wheel: name it in [tool.setuptools.package-data] of pyproject.toml")


def test_an_executors_image_starts_what_spark_asks_for(tmp_path: Path) -> None:
    """As the entrypoint of Spark's own images does."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": "/opt/spark",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Da=b c",
        "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "executor-1",
    }
    script = [str(DOCKER / "spark-executor.sh")]
    started = subprocess.run([*script, "executor"], env=environment, capture_output=True, text=True, check=True)
    assert started.stdout.splitlines() == [
        *("-Dspark.driver.port=7078", "-Da=b c", "-Xms1024m", "-Xmx1024m", "-cp", "/opt/spark/conf:/opt/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@10.0.0.1:7078", "--executor-id", "1", "--cores", "2"),
        *("--app-id", "spark-1", "--hostname", "10.0.0.2", "--resourceProfileId", "0", "--podName", "executor-1"),
    ]
    refused = subprocess.run([*script, "driver"], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2


def test_what_the_image_installs_is_what_is_audited_and_listed(tmp_path: Path) -> None:
    for path in ("pyproject.toml", "requirements/dev.txt", "docker/requirements.py"):
        shutil.copy(REPOSITORY / path, tmp_path)
    command = [sys.executable, "requirements.py", "worker", "kafka"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    texts = printed, (REPOSITORY / "requirements" / "image.txt").read_text()
    installed, listed = (re.findall(r"^\w\S+", text, re.MULTILINE) for text in texts)
    assert installed == listed
