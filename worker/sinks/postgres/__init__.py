"""The Postgres sink: folded changes are staged by tasks and merged by the driver, in one transaction with the position."""

from pgsluice.worker.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
