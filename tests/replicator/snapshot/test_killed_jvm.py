"""Spark's JVM dies under a copy, wherever the copy is: that passes, and no table is to blame."""

from __future__ import annotations

import logging

import psutil
import pytest

from pgsluice.replicator.replicator import run
from pgsluice.shared.broker.ledger import CopyState, Ledger, Phase
from pgsluice.shared.config.copy_settings import CopySettings
from pgsluice.shared.errors import TransientError
from tests.replicated_group import Group

COPY = CopySettings(
    then_stream=True,
    workers_per_table=1,
    connections=1,
    range_bytes=1 << 16,
    retry_errored=False,
    recopy=(),
)


class JvmKiller(logging.Handler):
    """Kills the JVM when ``line`` is logged."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._line = line
        self.has_struck = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self._line:
            for child in psutil.Process().children():  # one that is lent (``tests/servers/lent_spark.py``) is a grandchild
                if child.name() == "java":
                    child.kill()
                    child.wait(10)
                    self.has_struck = True


@pytest.mark.parametrize(
    "line", ["exporting a snapshot; this waits for transactions that are open in the source", "copying tables"]
)
def test_a_jvm_that_is_killed_before_the_first_range_ends_the_copy_as_what_passes(
    replication: Group, spark_environment: None, line: str
) -> None:
    replication.source.execute("CREATE TABLE wide (id bigint PRIMARY KEY, v text)")
    replication.source.execute("INSERT INTO wide SELECT n, repeat('x', 500) FROM generate_series(1, 1000) n")
    killer, root = JvmKiller(line), logging.getLogger()
    level = root.level
    root.addHandler(killer)
    root.setLevel(logging.INFO)
    try:
        with pytest.raises(TransientError, match="JVM ended"):
            run(replication.settings(tables=("wide",), copy=COPY))
    finally:
        root.removeHandler(killer)
        root.setLevel(level)
    assert killer.has_struck
    replication.replicate(tables=("wide",), copy=COPY)
    ledger = replication.with_broker(lambda _, bucket: Ledger(bucket).load())
    assert ledger.snapshot.state is CopyState.FINISHED
    assert [table.phase for table in ledger.tables.values()] == [Phase.FINISHED_COPY]
