"""The archive of the JVM's classes is made, used, and done without."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.console import spark_archive
from pgsluice.shared.errors import TransientError
from pgsluice.shared.spark import class_archive
from pgsluice.shared.spark.session import JAVA_OPTIONS_KEY, Spark, configuration
from tests.servers.maven import java

pytestmark = pytest.mark.usefixtures("spark_environment")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, spark_environment: None) -> Iterator[Path]:
    """This installation's, made by the command when ``make`` did it, or else made here."""
    if class_archive.PATH.exists():
        yield class_archive.PATH
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_archive, "PATH", tmp_path_factory.mktemp("an installation") / "spark.jsa")
        spark_archive.run()
        yield class_archive.PATH


@pytest.mark.long
def test_the_command_leaves_an_archive_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "an installation" / "share" / "spark.jsa"
    monkeypatch.setattr(class_archive, "PATH", path)
    assert "SharedArchiveFile" not in configuration({})[JAVA_OPTIONS_KEY]
    spark_archive.run()
    assert list(path.parent.iterdir()) == [path]
    assert f"SharedArchiveFile={path}" in configuration({})[JAVA_OPTIONS_KEY]


def test_spark_maps_the_archive_that_was_made(archive: Path) -> None:
    spark = Spark("test", {}, "pgsluice.worker.spark_daemon")
    try:
        spark.start()
        assert str(archive.resolve()) in Path(f"/proc/{spark.process_id}/maps").read_text()
    finally:
        spark.close()


def test_an_archive_that_is_cut_off_is_refused_and_leaves_nothing_behind(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cut_off = tmp_path / "spark.jsa"
    cut_off.write_bytes(archive.read_bytes()[:1_000_000])
    with pytest.raises(TransientError, match="Spark did not start"):
        spark_archive.check(cut_off)
    assert list(Path.cwd().iterdir()) == []


def test_an_archive_of_something_else_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM looks at it before it knows what it is to run."""
    monkeypatch.setattr(class_archive, "PATH", tmp_path / "spark.jsa")
    class_archive.PATH.write_bytes(b"no archive" * 10_000)
    options = shlex.split(configuration({})[JAVA_OPTIONS_KEY])
    assert f"-XX:SharedArchiveFile={class_archive.PATH}" in options
    started = subprocess.run([java(), *options, "-version"], capture_output=True, text=True)
    assert (started.returncode, started.stdout) == (0, ""), started.stderr
    assert "spark.jsa" not in started.stderr


def test_the_users_own_archive_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "PATH", tmp_path / "spark.jsa")
    class_archive.PATH.write_bytes(b"x")
    assert str(class_archive.PATH) in configuration({})[JAVA_OPTIONS_KEY]
    given = configuration({JAVA_OPTIONS_KEY: "-XX:SharedArchiveFile=/mine"})[JAVA_OPTIONS_KEY]
    assert str(class_archive.PATH) not in given
