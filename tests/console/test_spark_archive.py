"""The archive of the JVM's classes is made, used, and done without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from console import spark_archive
from shared import class_archive
from shared.errors import TransientError
from shared.spark_session import Spark, configuration


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Spark is told of its Python by the environment, which later processes must not inherit."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_spark_maps_the_archive_that_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "PATH", tmp_path / "share" / "spark.jsa")
    assert "SharedArchiveFile" not in configuration({})["spark.driver.extraJavaOptions"]
    spark_archive.run()
    assert [file.name for file in class_archive.PATH.parent.iterdir()] == ["spark.jsa"]
    spark = Spark("test", {}, "worker.spark_daemon")
    try:
        spark.start()
        assert spark.process_id is not None
        assert str(class_archive.PATH) in mapped_files(spark.process_id)
    finally:
        spark.close()


def test_an_archive_of_something_else_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "PATH", tmp_path / "spark.jsa")
    class_archive.PATH.write_bytes(b"no archive" * 10_000)
    spark = Spark("test", {}, "worker.spark_daemon")
    try:
        spark.start()
    finally:
        spark.close()


def test_the_users_own_archive_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "PATH", tmp_path / "spark.jsa")
    class_archive.PATH.write_bytes(b"x")
    assert str(class_archive.PATH) in configuration({})["spark.driver.extraJavaOptions"]
    given = configuration({"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/mine"})["spark.driver.extraJavaOptions"]
    assert str(class_archive.PATH) not in given


def test_an_archive_that_is_cut_off_is_not_kept(tmp_path: Path) -> None:
    cut_off = tmp_path / "spark.jsa"
    if not class_archive.PATH.exists():
        pytest.skip("this installation has no archive")
    cut_off.write_bytes(class_archive.PATH.read_bytes()[:1_000_000])
    with pytest.raises(TransientError, match="Spark did not start"):
        spark_archive.check(cut_off)
