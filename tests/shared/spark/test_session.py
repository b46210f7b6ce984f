"""Running tasks, what Spark leaves behind, and what it gives to strangers."""

from __future__ import annotations

import base64
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.clientserver import ClientServerConnection

from pgsluice.shared.errors import TransientError
from pgsluice.shared.spark import session as spark_session
from pgsluice.shared.spark.session import Spark, _Gathered, configuration
from tests.servers.program import REPOSITORY
from tests.spark_stranger import read_blocks


@pytest.mark.parametrize("has_shared_memory", [True, False])
def test_what_the_jvm_writes_is_in_private_directories_that_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_environment: None, has_shared_memory: bool
) -> None:
    shared_memory, temporary = tmp_path / "shared memory", tmp_path / "temporary files"
    for directory in (shared_memory, temporary):
        directory.mkdir()
    monkeypatch.setattr(spark_session, "_SHARED_MEMORY", shared_memory if has_shared_memory else tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    spark = Spark("test", {}, "pyspark.daemon")
    try:
        spark.start()
        assert [path.parent for path in map(Path, temporary_directories(spark))] == [temporary]
        assert spark.context.parallelize(range(10), 2).sum() == 45
    finally:
        spark.close()
    assert [*temporary.iterdir()] == []
    assert [*shared_memory.iterdir()] == []


def test_after_a_session_whose_context_somebody_stopped_another_begins(spark_environment: None) -> None:
    """As a notebook's does."""
    for _ in range(2):
        spark = Spark("test", {}, "pyspark.daemon")
        spark.start()
        spark.context.stop()
        assert spark.close() is not None


def repeated(number: int) -> Iterator[bytes]:
    yield b"%d" % number
    yield b"x" * (number * 1_000_000)


@pytest.mark.parametrize(("name", "has_sockets"), [("short", True), ("long" * 16, False)])
def test_tasks_answer_by_sockets_in_a_directory_of_ours_or_over_tcp_where_its_path_is_too_long(
    monkeypatch: pytest.MonkeyPatch, spark_environment: None, name: str, has_sockets: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # what tasks unpickle is here
    with tempfile.TemporaryDirectory() as directory:
        shared_memory = Path(directory) / name
        shared_memory.mkdir()
        monkeypatch.setattr(spark_session, "_SHARED_MEMORY", shared_memory)
        spark = Spark("test", {"spark.master": "local[2]"}, "pyspark.daemon")
        try:
            spark.start()
            expected = [b"1", b"x" * 1_000_000, b"3", b"x" * 3_000_000, b"0", b""]
            assert spark.run_tasks(repeated, [1, 3, 0]) == expected
            assert [*spark.stream_tasks(repeated, [1, 3, 0])] == expected
            sockets = [path for path in Path(directory).rglob("*") if path.is_socket()]
            assert bool(sockets) == has_sockets
            assert all(path.parent.stat().st_mode & 0o077 == 0 for path in sockets)
        finally:
            spark.close()


def test_what_nobody_takes_of_streamed_results_makes_no_noise_and_leaves_no_file(
    spark_environment: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr(spark_session, "_SHARED_MEMORY", tmp_path)
    spark = Spark("test", {"spark.master": "local[2]"}, "pyspark.daemon")
    try:
        spark.start()
        results = spark.stream_tasks(repeated, [1, 2, 3])
        assert next(results) == b"1"
        del results
        assert not [*tmp_path.rglob("results-*")]
    finally:
        spark.close()
    assert "Traceback" not in capfd.readouterr().err


def test_what_only_a_local_master_needs_is_not_set_for_a_cluster() -> None:
    local, cluster = configuration({}), configuration({"spark.master": "spark://cluster:7077"})
    of_local = {"spark.driver.host", "spark.driver.bindAddress", "spark.authenticate", "spark.executor.heartbeatInterval"}
    assert local.keys() - cluster.keys() == of_local
    assert configuration({"spark.master": "spark://cluster:7077", "spark.driver.host": "me"})["spark.driver.host"] == "me"


def test_results_are_cut_so_that_the_jvm_writes_each_piece_at_once() -> None:
    """Its writer's buffer has 8192 characters; what is larger waits for an acknowledgement."""
    pieces = [*_Gathered(repeated)(1), *_Gathered(repeated)(3)]
    assert max(len(base64.b64encode(piece)) for piece in pieces) < 8192 - len("!yj\n")
    joined = io.BytesIO(b"".join(pieces))
    assert [pickle.load(joined), pickle.load(joined)] == [[*repeated(1)], [*repeated(3)]]


def test_a_job_does_not_look_up_what_the_one_before_it_knew(spark_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    spark = Spark("test", {"spark.master": "local[1]"}, "pyspark.daemon")
    asked: list[str] = []

    def send(connection: ClientServerConnection, command: str) -> str:
        asked.append(command)
        return str(send_command(connection, command))

    send_command = ClientServerConnection.send_command
    try:
        spark.start()
        spark.run_tasks(process_ids, [1])
        monkeypatch.setattr(ClientServerConnection, "send_command", send)
        spark.run_tasks(process_ids, [1])
        assert [command for command in asked if command.startswith("r\nu\n") or "HashMap" in command] == []
        assert len([command for command in asked if command.startswith("i\n")]) == 3, "function, RDD, and a list of broadcasts"
    finally:
        spark.close()


def process_ids(_: int) -> Iterator[int]:
    yield os.getpid()


def test_a_python_process_runs_one_job_after_the_other(spark_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    spark = Spark("test", {"spark.master": "local[1]"}, "pyspark.daemon")
    try:
        spark.start()
        assert len({pid for _ in range(5) for pid in spark.run_tasks(process_ids, [1])}) == 1
    finally:
        spark.close()


def test_a_jvm_that_was_killed_is_noticed_without_asking_it(spark_environment: None) -> None:
    spark = Spark("test", {"spark.master": "local[1]"}, "pyspark.daemon")
    try:
        spark.check_alive()
        spark.start()
        spark.check_alive()
        assert spark.process_id is not None
        os.kill(spark.process_id, signal.SIGKILL)
        assert spark.has_died
        with pytest.raises(TransientError, match="Spark's JVM ended"):
            spark.check_alive()
    finally:
        spark.close()


def temporary_directories(spark: Spark) -> list[str]:
    arguments = Path(f"/proc/{spark.process_id}/cmdline").read_text().split("\0")
    return [argument.removeprefix("-Djava.io.tmpdir=") for argument in arguments if argument.startswith("-Djava.io.tmpdir=")]


BLOCKS = [f"broadcast_{number}_piece0" for number in range(8)]


@pytest.mark.parametrize("authenticates", [True, False])
def test_a_local_spark_gives_its_blocks_to_nobody_else(spark_environment: None, authenticates: bool) -> None:
    """Unless the user wants it so: then the stranger of this test gets them, so it knows how to ask."""
    spark = Spark(
        "test", {"spark.master": "local[1]"} | ({} if authenticates else {"spark.authenticate": "false"}), "pyspark.daemon"
    )
    secret = "s3cret-of-a-task"
    try:
        spark.start()
        kept = spark.context.broadcast(secret)  # those of a job may be gone when it is done
        assert spark.context.parallelize(range(3), 1).map(lambda number: kept.value[number]).collect() == ["s", "3", "c"]
        assert spark.process_id is not None
        assert bool(read_blocks(spark.process_id, BLOCKS)) is not authenticates
    finally:
        spark.close()


LOADED_BY_A_DRIVER = """
import sys
from pgsluice.shared.spark.session import Spark
spark = Spark("test", {"spark.master": "local[1]"}, "pyspark.daemon")
try:
    spark.start()
    assert spark.run_tasks(list, [b"ab"]) == list(spark.stream_tasks(list, [b"ab"])) == list(b"ab")
    print(*{name.partition(".")[0] for name in sys.modules})
finally:
    spark.close()
"""


def test_a_driver_that_has_run_tasks_has_loaded_none_of_the_libraries_that_pyspark_takes_its_values_from() -> None:
    """50 MB, and a third of a second at each start: PySpark asks of all that goes to the JVM whether it is an array of NumPy."""
    command = [sys.executable, "-c", LOADED_BY_A_DRIVER]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    loaded = set(ended.stdout.split())
    assert "pyspark" in loaded
    assert not loaded & {"numpy", "pandas", "pyarrow"}
