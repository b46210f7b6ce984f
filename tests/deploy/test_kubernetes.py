"""The Kubernetes example and the chart's values, as far as no tool is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.documented import blocks
from tests.deploy.pods import check_deployment, manifests, of_kind
from tests.misses import no_misses
from tests.servers.program import REPOSITORY

EXAMPLE = REPOSITORY / "deploy" / "kubernetes"
CHART = REPOSITORY / "deploy" / "helm" / "pgsluice"


def keys_of_secrets() -> dict[str, list[str]]:
    secrets = of_kind("Secret", manifests((EXAMPLE / "secrets.example.yaml").read_text()))
    return {name: list(secret["stringData"]) for name, secret in secrets.items()}


def resources() -> list[dict[str, Any]]:
    """All of the kustomization."""
    names = yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())["resources"]
    return [document for name in names for document in manifests((EXAMPLE / name).read_text())]


def test_every_deployment_of_the_example_runs_as_it_should(tmp_path: Path) -> None:
    config, deployments = yaml.safe_load((EXAMPLE / "pgsluice.yaml").read_text()), of_kind("Deployment", resources())
    assert deployments
    for name, deployment in deployments.items():
        print(f"checking deployment {name} of deploy/kubernetes")  # shown where one of its many assertions fails
        check_deployment(deployment, config, keys_of_secrets(), tmp_path)


def test_the_example_is_in_its_own_namespace_which_admits_nothing_more() -> None:
    (namespace,) = of_kind("Namespace", resources()).values()
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    kustomization = yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())
    assert kustomization["namespace"] == namespace["metadata"]["name"]


def test_every_volume_of_the_example_that_is_claimed_is_asked_for() -> None:
    claimed = {
        volume["persistentVolumeClaim"]["claimName"]
        for deployment in of_kind("Deployment", resources()).values()
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    asked_for = of_kind("PersistentVolumeClaim", resources()).keys()
    no_misses(claimed ^ asked_for, "a volume that is mounted and not asked for, or asked for and not mounted")


def test_the_page_makes_the_secrets_that_the_example_mounts() -> None:
    commands = blocks("how-to/kubernetes.md", "sh")[0]
    for name, keys in keys_of_secrets().items():
        making = [line for line in commands.splitlines() if f"secret generic {name} " in line]
        assert len(making) == 1, f"docs/how-to/kubernetes.md makes the secret {name} {len(making)} times, not once"
        absent = (key for key in keys if f"--from-file={key}=" not in making[0])
        no_misses(absent, f"add --from-file=KEY=… to the line of docs/how-to/kubernetes.md that makes the secret {name}")


def test_the_chart_s_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    no_misses(unknown(values, schema, schema["definitions"]), "a value of the chart that values.schema.json does not know")


def unknown(value: object, schema: Mapping[str, Any], definitions: Mapping[str, Any], place: str = "") -> list[str]:
    """Places that a closed object of the schema does not name."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    found = []
    for key, inner in value.items():
        if key in schema["properties"]:
            found += unknown(inner, schema["properties"][key], definitions, f"{place}.{key}")
        elif schema.get("additionalProperties") is False:
            found.append(f"{place}.{key}")
    return found
