"""A worker whose tasks run in pods, told what the manifest of ``deploy`` tells it, with what an executor's image runs.

``make test-spark-cluster`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer
from tests.servers.child import HOST
from tests.servers.kubernetes_api import DRIVER_POD, KubernetesApi
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until
from tools.version import current_version

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(600)]

MANIFEST = REPOSITORY / "deploy" / "kubernetes" / "spark-worker.yaml"
OF_THE_POD = {"$(POD_NAME)": DRIVER_POD, "$(POD_NAMESPACE)": "pgsluice", "$(POD_IP)": HOST}


def documents() -> dict[str, Any]:
    """By kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture
def kubernetes() -> Iterator[KubernetesApi]:
    with KubernetesApi([str(REPOSITORY / "docker" / "spark-executor.sh")]) as api:
        yield api


@pytest.fixture
def spark_settings(kubernetes: KubernetesApi, tmp_path: Path) -> dict[str, str]:
    """What the manifest's arguments say, at the API that is here."""
    template = tmp_path / "executor.yaml"
    template.write_text(documents()["ConfigMap"]["data"]["executor.yaml"])
    arguments = documents()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    said = dict(argument.removeprefix("--spark=").split("=", 1) for argument in arguments if argument.startswith("--spark="))
    said = {name: OF_THE_POD.get(value, value) for name, value in said.items()}
    assert Path(said["spark.kubernetes.executor.podTemplateFile"]).name == template.name
    return said | {
        "master": kubernetes.master,
        "memory": "512m",
        "spark.kubernetes.executor.podTemplateFile": str(template),
    }


def test_a_worker_applies_a_copy_and_changes_by_executors_in_pods(
    kubernetes: KubernetesApi,
    spark_settings: dict[str, str],
    source_database: Database,
    target_database: Database,
    nats_server: NatsServer,
    group: str,
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 1000)")
    keys = configuration(group, source_database, target_database, nats_server, **{"copy-and-stream": True})
    # Only the worker runs in pods, on the ports that the manifest fixes.
    with GroupUnderTest(keys) as under_test:
        under_test.worker.terminate()
        under_test.worker.wait()
        under_test.worker.config_path.write_text(yaml.safe_dump(keys | {"spark": spark_settings}))
        under_test.worker.start()
        under_test.worker.wait_for_log("executors are fit", deadline_s=300)
        wait_until(lambda: rows(target_database) == 1000, deadline_s=120, what="copied rows")
        source_database.execute("INSERT INTO t SELECT generate_series(1001, 1500)")
        wait_until(lambda: rows(target_database) == 1500, deadline_s=120, what="changed rows")
        pods = kubernetes.executors()
        under_test.worker.terminate()
        assert under_test.worker.wait() == 0, under_test.worker.log()[-4000:]
    assert len(pods) == 2
    for pod in pods:
        check_restricted(pod)
        assert not [mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if "pgsluice-spark" in mount["mountPath"]]
    assert not [process for process in psutil.Process().children(recursive=True) if "KubernetesExecutor" in str(process)]


def check_restricted(pod: dict[str, Any]) -> None:
    """As a namespace that enforces the security standard of that name would."""
    security, container = pod["spec"]["securityContext"], pod["spec"]["containers"][0]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["image"].endswith(f"/pgsluice-executor:{current_version()}")


def rows(database: Database) -> int:
    if database.execute("SELECT to_regclass('t')") == [(None,)]:
        return 0
    return int(database.execute("SELECT count(*) FROM t")[0][0])
