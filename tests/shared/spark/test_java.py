"""Which Java is accepted, without starting it where it says its version in a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.shared.spark.java import check_java
from tests.console.test_starting import NOWHERE, REPLICATOR, WORKER, ended


def java_at(home: Path, script: str = "exit 1", release: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_the_release_file_tells_the_version_without_a_start(tmp_path: Path, version: str) -> None:
    check_java({"JAVA_HOME": str(java_at(tmp_path / "jdk", release=version))})


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16.0.1"])
def test_an_old_java_is_refused_by_name_with_the_package_to_install(tmp_path: Path, version: str) -> None:
    home = java_at(tmp_path / "jdk", release=version)
    with pytest.raises(UsageError, match=rf"{home}/bin/java is Java {version}.*openjdk-17-jre-headless"):
        check_java({"JAVA_HOME": str(home)})


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    check_java({"PATH": str(java_at(tmp_path / "new", """echo 'openjdk version "17.0.15" 2025-04-15' >&2""") / "bin")})
    old = java_at(tmp_path / "old", """echo 'java version "1.8.0_292"' >&2""")
    with pytest.raises(UsageError, match=r"is Java 1\.8\.0_292"):
        check_java({"PATH": str(old / "bin")})
    with pytest.raises(UsageError, match="does not print its version"):
        check_java({"PATH": str(java_at(tmp_path / "broken") / "bin")})


def test_java_of_the_path_is_not_asked_when_java_home_is_wrong(tmp_path: Path) -> None:
    path = java_at(tmp_path / "jdk", release="17") / "bin"
    with pytest.raises(UsageError, match=r"there is no /absent/bin/java \(JAVA_HOME\)"):
        check_java({"JAVA_HOME": "/absent", "PATH": str(path)})


@pytest.mark.parametrize("arguments", [WORKER, [*REPLICATOR, "--copy"], [*REPLICATOR, "--copy-and-stream"]])
def test_what_needs_spark_ends_with_2_before_it_connects_anywhere(arguments: list[str], tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    code, _, log = ended(*arguments, env=environment)
    assert (code, log) == (
        2,
        "pgsluice: Spark needs Java, and there is no 'java' in PATH: install Java 17 or later (Debian: openjdk-17-jre-headless), "
        "and let JAVA_HOME name it or nothing\n",
    )


def test_what_needs_no_spark_needs_no_java(tmp_path: Path) -> None:
    code, _, log = ended(*REPLICATOR, env={"PATH": str(tmp_path), "JAVA_HOME": "/absent"})
    assert (code, NOWHERE.rpartition("/")[2] in log) == (75, True), sys.executable


WITHOUT_SPARK = """
import sys
sys.modules.update({name: None for name in ("numpy", "pandas", "py4j", "pyarrow", "pyspark")})
from pgsluice.console.program import run
raise SystemExit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("arguments", [WORKER, [*REPLICATOR, "--copy"], [*REPLICATOR, "--copy-and-stream"], ["spark-archive"]])
def test_an_installation_without_spark_says_so(arguments: list[str]) -> None:
    process = subprocess.run([sys.executable, "-c", WITHOUT_SPARK, *arguments], capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr == (
        "pgsluice: this installation has no Spark: it can stream, but not take snapshots or run workers and query pipelines: "
        "use the image 'pgsluice' instead of 'pgsluice-replicator'\n"
    )
