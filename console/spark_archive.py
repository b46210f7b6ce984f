"""Makes the class archive of ``shared.spark.class_archive``, in a Spark that does a little of everything that ours does."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from pgsluice.shared.errors import TransientError
from pgsluice.shared.spark import class_archive
from pgsluice.shared.spark.session import JAVA_OPTIONS_KEY, Spark

PATIENCE_S = 300.0  # the JVM writes 150 MB when it ends

_SCHEMA = "n bigint, body binary"


def run() -> None:
    """Raises TransientError when Spark or the JVM does not do its part; an archive from before is left alone then."""
    path = class_archive.PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory) / path.name
        spark = _spark(class_archive.options_to_make(made))
        try:
            spark.start_session()
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
    spark.warm_up()
    spark.context.parallelize(range(2), 2).mapPartitions(_same).collect()
    spark.session.dataSource.register(_Numbers)
    writer = spark.session.readStream.format(_Numbers.name()).load().writeStream.foreachBatch(_collect)
    query = writer.option("checkpointLocation", spark.checkpoint_directory()).trigger(availableNow=True).start()
    query.awaitTermination()


def _collect(rows: DataFrame, batch_id: int) -> None:
    written = rows.mapInArrow(_same, _SCHEMA)
    written.collect()
    list(written.toLocalIterator(prefetchPartitions=True))


def _same(rows: Iterator[Any]) -> Iterator[Any]:
    yield from rows


class _Numbers(DataSource):  # type: ignore[misc]
    """A stream of two batches."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return _SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        return _NumbersReader()


class _NumbersReader(DataSourceStreamReader):  # type: ignore[misc]
    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        return {"n": 2}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [partition.value], "body": [b"row"]})
