"""Spark in the tests' own process, borrowed (``tests/servers/lent_spark.py``) where its start, end and settings are no matter."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from py4j import java_gateway

from pgsluice.shared.spark.session import Spark
from tests.servers.lent_spark import borrow_from_now_on, lender

WORKER_DAEMON = "pgsluice.worker.spark_daemon"

SETTINGS = {"spark.master": "local[2]", "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
"""Of the programs that tests start, too (``group_under_test.configuration``), so that all share one JVM."""


@contextlib.contextmanager
def borrowing() -> Iterator[None]:
    """Inside, whatever starts Spark in this process borrows it."""
    with pytest.MonkeyPatch.context() as patch, environment_restored():
        borrow_from_now_on(lender.address, patch.setattr)
        yield


@contextlib.contextmanager
def borrowed_spark(daemon: str = WORKER_DAEMON) -> Iterator[Spark]:
    """``daemon`` is what the Python processes of tasks are forked from."""
    with borrowing():
        spark = Spark("test", SETTINGS, daemon)
        try:
            spark.start()
            yield spark
        finally:
            spark.close()


@contextlib.contextmanager
def environment_restored() -> Iterator[None]:
    """Spark is told of its Python by the environment, which later processes must not inherit; and a session of Spark SQL has Py4J
    raise other exceptions from then on, which nobody expects who begins none."""
    before, get_return_value = dict(os.environ), java_gateway.get_return_value
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        java_gateway.get_return_value = get_return_value
