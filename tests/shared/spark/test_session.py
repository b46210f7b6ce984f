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
from tests.borrowed_spark import borrowed_spark
from tests.servers.program import REPOSITORY
from tests.spark_stranger import read_blocks


@pytest.fixture
def borrowed() -> Iterator[Spark]:
    with borrowed_spark() as spark:
        yield spark


def repeated(number: int) -> Iterator[bytes]:
    yield b"%d" % number
    yield b"x" * (number * 1_000_000)


def put_in(monkeypatch: pytest.MonkeyPatch, shared_memory: Path, temporary: Path) -> None:
    """What Spark writes."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # what tasks unpickle is here
    monkeypatch.setattr(spark_session, "_SHARED_MEMORY", shared_memory)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))


@pytest.fixture
def directories() -> Iterator[tuple[Path, Path]]:
    """Of shared memory and of temporary files, with short paths: a socket's has few bytes."""
    with tempfile.TemporaryDirectory() as directory:
        shared_memory, temporary = Path(directory, "shared memory"), Path(directory, "files")
        shared_memory.mkdir()
        temporary.mkdir()
        yield shared_memory, temporary


def test_spark_writes_into_private_directories_that_go_with_it_and_streams_without_noise(
    spark_environment: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], directories: tuple[Path, Path]
) -> None:
    """Tasks answer by sockets there. Results that nobody takes leave no file."""
    put_in(monkeypatch, *directories)
    shared_memory, temporary = directories
    spark = Spark("test", {"spark.master": "local[2]"}, "pyspark.daemon")
    try:
        spark.start()
        assert [path.parent for path in map(Path, temporary_directories(spark))] == [temporary]
        check_answers(spark)
        assert sockets_in(shared_memory)
        assert not sockets_in(temporary)
        assert all(path.parent.stat().st_mode & 0o077 == 0 for path in sockets_in(shared_memory))
        results = spark.stream_tasks(repeated, [1, 2, 3])
        assert next(results) == b"1"
        del results
        assert not [*shared_memory.rglob("results-*")]
    finally:
        spark.close()
    assert [[*directory.iterdir()] for directory in directories] == [[], []]
    assert "Traceback" not in capfd.readouterr().err


def check_answers(spark: Spark) -> None:
    expected = [b"1", b"x" * 1_000_000, b"3", b"x" * 3_000_000, b"0", b""]
    assert spark.run_tasks(repeated, [1, 3, 0]) == expected
    assert spark.run_tasks(repeated, [1, 3, 0], most_tasks=2) == expected
    assert [*spark.stream_tasks(repeated, [1, 3, 0])] == expected


def sockets_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_socket()]


def test_spark_does_without_shared_memory_and_without_sockets_where_the_path_is_too_long(
    spark_environment: None, monkeypatch: pytest.MonkeyPatch, directories: tuple[Path, Path]
) -> None:
    """And gives blocks to a stranger when the user wants it so, which shows that the stranger knows how to ask."""
    temporary = directories[1] / ("long" * 16)
    temporary.mkdir()
    put_in(monkeypatch, directories[0] / "none", temporary)
    spark = Spark("test", {"spark.master": "local[1]", "spark.authenticate": "false"}, "pyspark.daemon")
    try:
        spark.start()
        check_answers(spark)
        assert [*temporary.iterdir()]
        assert not sockets_in(temporary)
        assert gives_blocks_to_strangers(spark)
    finally:
        spark.close()
    assert [*temporary.iterdir()] == []


def test_a_local_spark_gives_its_blocks_to_nobody_else(borrowed: Spark) -> None:
    assert not gives_blocks_to_strangers(borrowed)


SECRET = "s3cret-of-a-task"


def gives_blocks_to_strangers(spark: Spark) -> bool:
    kept = spark.context.broadcast(SECRET)  # those of a job may be gone when it is done
    assert spark.context.parallelize(range(3), 1).map(lambda number: kept.value[number]).collect() == ["s", "3", "c"]
    assert spark.process_id is not None
    return bool(read_blocks(spark.process_id, [f"broadcast_{kept._jbroadcast.id()}_piece0"]))


def test_after_a_session_whose_context_somebody_stopped_another_begins_and_is_missed_when_it_is_killed(
    spark_environment: None,
) -> None:
    """As a notebook stops it. That the JVM is gone is noticed without asking it."""
    stopped, spark = (Spark("test", {"spark.master": "local[1]"}, "pyspark.daemon") for _ in range(2))
    stopped.start()
    stopped.context.stop()
    assert stopped.close() is not None
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
    """With a JVM of its own: what this process still asks of another one would be counted, too."""
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


def test_python_processes_run_one_job_after_the_other(borrowed: Spark) -> None:
    assert len({pid for _ in range(10) for pid in borrowed.run_tasks(process_ids, [1])}) <= borrowed.parallelism


def temporary_directories(spark: Spark) -> list[str]:
    arguments = Path(f"/proc/{spark.process_id}/cmdline").read_text().split("\0")
    return [argument.removeprefix("-Djava.io.tmpdir=") for argument in arguments if argument.startswith("-Djava.io.tmpdir=")]


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
