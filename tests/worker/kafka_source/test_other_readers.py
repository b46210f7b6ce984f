"""The examples of docs/how-to/source-kafka.md: how others read what a worker writes. They are run as they are printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.testing.batch import STREAM_CREATED, Batch, apply, write
from pgsluice.testing.changes_builder import delete, insert, message, update
from pgsluice.testing.tried_batches import ACCOUNTS
from pgsluice.worker.sinks.sink import Receipt
from tests.servers.kafka import RealKafka
from tests.servers.maven import server_jars
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "source-kafka.md"
NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""What Spark does not bring along."""


def example(heading: str) -> str:
    """The Python of that section."""
    section = PAGE.read_text().split(f"### {heading}\n")[1]
    [code] = re.findall(r"```python\n(.*?)```", section.split("\n### ")[0], re.DOTALL)
    return str(code)


def run(code: str, broker: RealKafka, topic: str, **more: str) -> str:
    environment = os.environ | {"KAFKA_BROKERS": broker.bootstrap, "KAFKA_TOPIC": topic} | more
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


class LateError(Exception):
    pass


@pytest.fixture
def topic(real_kafka: RealKafka, group: str) -> str:
    """It holds a batch that was given up half-way, and then the whole of it."""
    destination = KafkaDestination(real_kafka, group)
    sink = destination.new_sink()
    sink.open()
    changes: Batch = [
        [message(1, insert(ACCOUNTS, b"1", b"Ada"), insert(ACCOUNTS, b"2", b"Bob"))],
        [message(2, update(ACCOUNTS, b"1", b"Ada L."), delete(ACCOUNTS, b"2", None))],
    ]

    reader = destination.reader("accounts")

    def interrupted() -> Iterator[Receipt]:
        yield write(sink, changes)[0]
        wait_until(lambda: reader.records(committed=False, waits=False), what="records of an open transaction")
        raise LateError

    with pytest.raises(LateError):
        sink.commit(interrupted(), STREAM_CREATED)
    apply(sink, changes)
    sink.close()
    assert len(reader.records(committed=False)) > len(reader.records())
    return reader.topic


def test_a_consumer_in_python_sees_each_change_once(real_kafka: RealKafka, topic: str) -> None:
    rows = json.loads(run(example("Python"), real_kafka, topic))
    assert {key: list(row.values()) for key, row in rows.items()} == {"1": [1, "Ada L."]}


def test_spark_s_own_source_sees_each_change_once(real_kafka: RealKafka, topic: str) -> None:
    jars = [str(jar) for jar in server_jars("spark-kafka").glob("*.jar") if jar.name.startswith(NEEDED)]
    assert len(jars) == len(NEEDED)
    submitted = f"--master local[1] --driver-memory 512m --jars {','.join(jars)} pyspark-shell"
    said = run(example("Spark"), real_kafka, topic, PYSPARK_SUBMIT_ARGS=submitted)
    assert said.splitlines() == ["DELETE 1", "INSERT 2", "UPDATE 1"]
