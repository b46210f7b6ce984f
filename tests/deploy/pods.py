"""What every pod of ours must be, whoever wrote it: an example by hand, or a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pgsluice.shared.config import Values
from tests.deploy.command_line import loaded

Manifest = dict[str, Any]

CONFIGURATION = "pgsluice.yaml"
LEAST_GRACE_S = 60
"""As docs/how-to/operate.md says."""

WRITABLE = {"/tmp", "/dev/shm"}
"""What a process needs besides a directory for files: Spark writes to both."""


def manifests(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def of_kind(kind: str, documents: Sequence[Manifest]) -> dict[str, Manifest]:
    """By their names."""
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def check_deployment(
    deployment: Manifest, config: Mapping[str, Any], keys_of_secrets: Mapping[str, Sequence[str]], directory: Path
) -> None:
    """Asserts all of it; ``keys_of_secrets`` are the keys of each secret by its name, ``config`` is what the pod mounts."""
    spec = deployment["spec"]
    template = spec["template"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    _check_pod(template["spec"])
    (container,) = template["spec"]["containers"]
    _check_limits(container)
    _check_probes(container, config)
    written = {**config} | {key: str(directory / "secret") for key in config if key.endswith("password-file")}
    (directory / "secret").write_text("secret\n")
    values = loaded(container["args"], written, directory)
    _check_mounts(template["spec"], values, config, keys_of_secrets)


def _check_pod(pod: Mapping[str, Any]) -> None:
    """PodSecurity "restricted", and what our processes need."""
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert {security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "a service's variables would be taken for options"
    assert pod["shareProcessNamespace"] is True
    assert pod["terminationGracePeriodSeconds"] >= LEAST_GRACE_S


def _check_limits(container: Mapping[str, Any]) -> None:
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def _check_probes(container: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    (port,) = container["ports"]
    host, _, number = config["metrics-listen"].rpartition(":")
    assert (host, int(number), port["name"]) == ("0.0.0.0", port["containerPort"], "metrics")
    live, ready = container["livenessProbe"], container["readinessProbe"]
    assert live["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert ready["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert live["periodSeconds"] * live["failureThreshold"] >= 600, "a large transaction looks like one that stands still"


def _check_mounts(
    pod: Mapping[str, Any], values: Values, config: Mapping[str, Any], keys_of_secrets: Mapping[str, Sequence[str]]
) -> None:
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly") and path in WRITABLE}
    assert writable == WRITABLE
    for path in _files_read(container["args"], config):
        volume = volumes[mounts[str(path.parent)]["name"]]
        assert path.name in keys_of_secrets[volume["secret"]["secretName"]]
    if "file" in container["args"]:
        assert "persistentVolumeClaim" in volumes[mounts[values.text("file-output-dir")]["name"]]


def _files_read(arguments: Sequence[str], config: Mapping[str, Any]) -> Iterator[Path]:
    """Secrets that the role reads."""
    if arguments[0] == "replicator":
        yield Path(config["password-file"])
    if "postgres" in arguments:
        yield Path(config["target-password-file"])
