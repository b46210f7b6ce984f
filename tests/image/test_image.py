"""The images: their size, contents, user and limits."""

from __future__ import annotations

import subprocess

import pytest

from tests.image.engine import IMAGE, REPLICATOR_IMAGE, Engine, ready

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

LIMITS = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--init")
MOST_BYTES = {IMAGE: 600_000_000, REPLICATOR_IMAGE: 150_000_000}
"""The largest unpacked size of each image."""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return ready(with_servers=False)


def output(engine: Engine, image: str, *command: str) -> str:
    """Runs a program other than pgsluice in a container with the documented limits; returns its output."""
    return engine.run("run", "--rm", *LIMITS, "--entrypoint", command[0], image, *command[1:])


@pytest.mark.parametrize("image", MOST_BYTES)
def test_an_image_is_small(engine: Engine, image: str) -> None:
    (found,) = engine.run("image", "inspect", "--format", "{{.Size}}", image).split()
    assert int(found) <= MOST_BYTES[image]


@pytest.mark.parametrize("image", MOST_BYTES)
def test_an_image_runs_without_root_on_a_read_only_root(engine: Engine, image: str) -> None:
    assert engine.run("run", "--rm", *LIMITS, image, "--version").startswith("pgsluice ")
    assert output(engine, image, "id", "--user").strip() == "10001"


@pytest.mark.parametrize("image", MOST_BYTES)
def test_an_image_has_a_health_check_and_no_installer(engine: Engine, image: str) -> None:
    assert "pgsluice" in engine.run("image", "inspect", "--format", "{{.HealthCheck}}{{.Config.Healthcheck}}", image)
    there = output(engine, image, "sh", "-c", "command -v pip apt-get dpkg perl; true")
    assert there == ""


def test_the_replicators_image_has_no_spark_and_says_what_it_cannot_do(engine: Engine) -> None:
    assert (
        output(engine, REPLICATOR_IMAGE, "sh", "-c", "command -v java; ls -d /opt/pgsluice/lib/*/site-packages/pyspark || true")
        == ""
    )
    ended = subprocess.run([engine.program, "run", "--rm", REPLICATOR_IMAGE, "spark-archive"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "this installation has no Spark" in ended.stderr
    assert "use the image 'pgsluice'" in ended.stderr


@pytest.mark.parametrize("image", MOST_BYTES)
def test_every_module_that_an_image_can_run_is_complete(engine: Engine, image: str) -> None:
    """Imports the libraries, with their compiled parts and the libraries that these link to."""
    modules = "psycopg, nats, uvloop, orjson, regex, yaml, rich.progress, prometheus_client, nkeys"
    if image == IMAGE:
        modules += ", numpy, pyarrow, pyarrow.compute, pyarrow.parquet, pyspark.sql, confluent_kafka"
    assert output(engine, image, "python", "-c", f"import {modules}") == ""


def test_spark_maps_the_class_archive_of_the_image(engine: Engine) -> None:
    script = (
        "from pathlib import Path; from pgsluice.shared.spark.session import Spark;"
        " spark = Spark('test', {}, 'pgsluice.worker.spark_daemon'); spark.start();"
        " print('spark.jsa' in Path(f'/proc/{spark.process_id}/maps').read_text()); spark.close()"
    )
    assert output(engine, IMAGE, "python", "-c", script).splitlines()[-1] == "True"


def test_an_image_of_spark_on_kubernetes_has_its_client(engine: Engine) -> None:
    """The worker's image has none of its jars."""
    for target in ("spark-driver", "spark-executor"):
        engine.build(target, f"localhost/pgsluice-{target}:test")
    find = ("sh", "-c", "ls /opt/pgsluice/lib/*/site-packages/pyspark/jars | grep --count kubernetes; true")
    counts = {name: int(output(engine, name, *find)) for name in (IMAGE, "localhost/pgsluice-spark-driver:test")}
    assert counts[IMAGE] == 0
    assert counts["localhost/pgsluice-spark-driver:test"] > 10
    assert int(output(engine, "localhost/pgsluice-spark-executor:test", *find)) > 10
