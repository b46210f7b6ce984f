"""What a Spark that cannot run our tasks is told apart by: a sentence, not a Java stack trace."""

from __future__ import annotations

import pytest

from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE, start_spark
from pgsluice.shared.errors import TransientError
from pgsluice.shared.spark.session import Spark


@pytest.mark.parametrize(
    ("python", "daemon", "missing"),
    [("/no/such/python", DAEMON_MODULE, "cannot run /no/such/python"), (None, "nowhere.daemon", "no Python module nowhere")],
)
def test_executors_without_our_program_are_told_in_one_sentence(
    spark_environment: None, monkeypatch: pytest.MonkeyPatch, python: str | None, daemon: str, missing: str
) -> None:
    if python is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", python)
    spark = Spark("test", {"master": "local[1]", "memory": "512m"}, daemon)
    try:
        with pytest.raises(TransientError) as raised:
            start_spark(spark, connections=1, files=[])
    finally:
        spark.close()
    assert missing in raised.value.fact
    assert "executor" in raised.value.fact
    assert "\n" not in str(raised.value)
