"""The chart and the kustomization as helm and kustomize render them, held against Kubernetes' schemas and our own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.monitoring import DASHBOARD, RULES
from tests.deploy.pods import CONFIGURATION, check_deployment, manifests, of_kind
from tests.deploy.test_kubernetes import CHART, EXAMPLE, keys_of_secrets
from tests.deploy.tools import run

pytestmark = pytest.mark.deploy

KUBERNETES = ("1.25.0", "1.31.0", "1.37.0")
"""The oldest that the chart takes, and newer ones."""

LARGE = {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "6Gi"}}

EVERYTHING: dict[str, Any] = {
    "image": {"pullSecrets": ["registry"], "tag": "1"},
    "workers": [
        {"name": "postgres", "sink": "postgres", "secretName": "shop-target"},
        {"name": "files", "sink": "file", "config": {"format": "parquet"}, "persistence": {"size": "20Gi"}},
        {"name": "lines", "sink": "file", "persistence": {"existingClaim": "lines"}, "resources": LARGE},
    ],
    "persistence": {"storageClassName": "fast", "accessMode": "ReadWriteOnce"},
    "metricsPort": 9500,
    "pod": {
        "labels": {"team": "data"},
        "annotations": {"note": "x"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "env": [{"name": "TZ", "value": "UTC"}],
    },
    "monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}, "dashboard": {"enabled": True}},
}  # fmt: skip


def rendered(directory: Path, values: dict[str, Any], kubernetes: str = KUBERNETES[-1]) -> str:
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return run("helm", "template", "shop", CHART, "--namespace", "data", "--kube-version", kubernetes, "--values", file)


def test_helm_s_linter_has_nothing_to_say() -> None:
    lines = run("helm", "lint", "--strict", "--quiet", CHART).splitlines()
    assert [line for line in lines if line.startswith("[") and "icon" not in line] == []


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it is", "everything"])
def test_kubernetes_takes_what_the_chart_makes(values: dict[str, Any], kubernetes: str, tmp_path: Path) -> None:
    ours = [
        document for document in manifests(rendered(tmp_path, values, kubernetes)) if "monitoring." not in document["apiVersion"]
    ]
    made = tmp_path / "made.yaml"
    made.write_text(yaml.safe_dump_all(ours))
    run("kubernetes-validate", "--strict", "--kubernetes-version", kubernetes, made)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it is", "everything"])
def test_every_deployment_of_the_chart_runs_as_it_should(values: dict[str, Any], tmp_path: Path) -> None:
    documents = manifests(rendered(tmp_path, values))
    configs = of_kind("ConfigMap", documents)
    deployments = of_kind("Deployment", documents)
    assert deployments.keys() == {
        "shop-replicator",
        *(f"shop-{worker['name']}" for worker in values.get("workers", [{"name": "postgres"}])),
    }
    for name, deployment in deployments.items():
        config = yaml.safe_load(configs[name]["data"][CONFIGURATION])
        check_deployment(deployment, config, keys_of_secrets(), tmp_path)


def check_policy(policy: dict[str, Any], documents: list[dict[str, Any]]) -> None:
    """It is about every pod, and lets only metrics in from elsewhere."""
    spec = policy["spec"]
    for deployment in of_kind("Deployment", documents).values():
        pod = deployment["spec"]["template"]
        assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert "metrics" in [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    assert spec["policyTypes"] == ["Ingress"]
    elsewhere = [each for each in spec["ingress"] if each["from"] != [{"podSelector": spec["podSelector"]}]]
    assert [each["ports"] for each in elsewhere] == [[{"protocol": "TCP", "port": "metrics"}]]
    assert all(each["from"] for each in elsewhere)


def test_strangers_reach_no_pod_of_the_chart_unless_the_policy_is_switched_off(tmp_path: Path) -> None:
    documents = manifests(rendered(tmp_path, EVERYTHING))
    check_policy(of_kind("NetworkPolicy", documents)["shop"], documents)
    assert of_kind("NetworkPolicy", manifests(rendered(tmp_path, {"networkPolicy": {"enabled": False}}))) == {}


def test_a_changed_configuration_starts_the_pods_anew(tmp_path: Path) -> None:
    def annotation(values: dict[str, Any]) -> str:
        deployment = of_kind("Deployment", manifests(rendered(tmp_path, values)))["shop-replicator"]
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert annotation({}) == annotation({"workers": []}) != annotation({"config": {"retention": "1h"}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": {"password": "in the open"}},
        {"config": {"metrics-listen": "127.0.0.1:1"}},
        {"workers": [{"name": "a", "sink": "kinesis"}]},
        {"workers": [{"name": "a", "sink": "file", "resource": {}}]},
        {"terminationGracePeriodSeconds": 30},
        {"replicas": 2},
        {"networkPolicy": {"metricsFrom": []}},
    ],
    ids=str,
)
def test_values_that_mean_nothing_or_harm_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema"):
        rendered(tmp_path, wrong)


def test_kubernetes_takes_the_worker_whose_tasks_have_pods_of_their_own(tmp_path: Path) -> None:
    documents = EXAMPLE / "spark-worker.yaml"
    template = tmp_path / "executor.yaml"
    template.write_text(of_kind("ConfigMap", manifests(documents.read_text()))["shop-spark-executor"]["data"]["executor.yaml"])
    pod = yaml.safe_load(template.read_text())
    template.write_text(yaml.safe_dump(pod | {"metadata": pod["metadata"] | {"name": "executor"}}))  # Spark gives it one
    run("kubernetes-validate", "--strict", documents, template)


def test_kubernetes_takes_what_kustomize_makes_of_the_example(tmp_path: Path) -> None:
    made = tmp_path / "made.yaml"
    made.write_text(run("kustomize", "build", EXAMPLE))
    run("kubernetes-validate", "--strict", made, EXAMPLE / "secrets.example.yaml")
    documents = manifests(made.read_text())
    (policy,) = of_kind("NetworkPolicy", documents).values()
    check_policy(policy, documents)
    (config,) = of_kind("ConfigMap", documents)
    for deployment in of_kind("Deployment", documents).values():
        pod = deployment["spec"]["template"]["spec"]
        assert {"name": "config", "configMap": {"name": config}} in pod["volumes"]
        assert pod["containers"][0]["image"].startswith("registry.example.com/pgsluice:")


def test_the_chart_s_package_brings_rules_and_dashboard_whole(tmp_path: Path) -> None:
    run("helm", "package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("pgsluice-*.tgz")
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(EVERYTHING))
    documents = manifests(run("helm", "template", "shop", package, "--kube-version", KUBERNETES[-1], "--values", values))
    assert of_kind("PrometheusRule", documents)["shop"]["spec"] == yaml.safe_load(RULES.read_text())
    assert json.loads(of_kind("ConfigMap", documents)["shop-dashboard"]["data"]["pgsluice.json"]) == json.loads(
        DASHBOARD.read_text()
    )
    (monitor,) = of_kind("PodMonitor", documents).values()
    for deployment in of_kind("Deployment", documents).values():
        assert monitor["spec"]["selector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
        (port,) = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]
