"""Spark for the ranges of one run: started for it, and ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.snapshot.copy_task_messages import CopyParameters
from pgsluice.replicator.snapshot.schedule import Job
from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE, bounded_settings, run_job, start_spark
from pgsluice.shared import telemetry
from pgsluice.shared.config.declaration import files_of
from pgsluice.shared.pipelines.pipeline_settings import PipelineSettings
from pgsluice.shared.spark.session import Spark

log = telemetry.logger(__name__)


@contextmanager
def running_spark(
    settings: PipelineSettings, parameters: CopyParameters, pipeline: Pipeline
) -> Iterator[tuple[Job, ThreadPoolExecutor]]:
    """Blocks while Spark starts and ends. Raises TransientError when it does not start."""
    log.info("starting Spark", tasks=parameters.share.tasks)
    spark = Spark(f"pgsluice {pipeline.group} run", bounded_settings(settings.spark, pipeline.tasks), DAEMON_MODULE)
    threads = ThreadPoolExecutor(parameters.share.tasks, "pgsluice-pipeline")
    try:
        with spark.while_it_lives():
            start_spark(spark, pipeline.tasks, files_of(settings.nats) + files_of(settings.source))
            yield partial(run_job, spark, parameters), threads
    finally:
        spark.cancel_jobs()
        threads.shutdown(wait=False, cancel_futures=True)
        spark.close()
