"""Makes the class archive of ``shared.spark.class_archive``, in a Spark that does a little of everything that pgsluice's does."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgsluice.shared.errors import TransientError
from pgsluice.shared.spark import class_archive
from pgsluice.shared.spark.session import JAVA_OPTIONS_KEY, Spark

PATIENCE_S = 300.0  # the JVM writes 150 MB when it ends


def run() -> None:
    """Raises TransientError when Spark or the JVM does not do its part; an archive from before is left alone then."""
    path = class_archive.PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory) / path.name
        spark = _spark(class_archive.options_to_make(made))
        try:
            spark.start()
            _exercise(spark)
        finally:
            exit_code = spark.close(PATIENCE_S)
        if exit_code != 0 or not made.exists():
            raise TransientError("the JVM left no archive of its classes", "Spark starts without one, only slower")
        check(made)
        os.replace(made, path)
    sys.stderr.write(f"Spark's classes are archived in {path} ({path.stat().st_size / 1e6:.0f} MB)\n")


def check(made: Path) -> None:
    """A JVM refuses an archive that does not fit it, but dies of one that is cut off, as by a full disk: raises TransientError
    then. What the dying leaves is in the archive's directory."""
    spark = _spark(class_archive.options_to_try(made))
    try:
        spark.start()
    finally:
        spark.close()


def _spark(java_options: Sequence[str]) -> Spark:
    return Spark("pgsluice spark-archive", {JAVA_OPTIONS_KEY: " ".join(java_options)}, "pgsluice.worker.spark_daemon")


def _exercise(spark: Spark) -> None:
    inputs = [*range(2 * spark.parallelism)]
    spark.warm_up(_twice)
    spark.run_tasks(_twice, inputs)
    list(spark.stream_tasks(_twice, inputs))
    spark.context.parallelize(range(2), 2).mapPartitions(iter).collect()


def _twice(number: int) -> Iterator[bytes]:
    yield bytes(number)
    yield bytes(number)
