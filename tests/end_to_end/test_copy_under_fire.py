"""Tables are copied while they are written to, before, during and after; then the stream goes on without a gap or an overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end import pgbench
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import checksum
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

CATCH_UP_DEADLINE_S = 120.0


def transactions(database: Database) -> int:
    return int(database.execute("SELECT count(*) FROM pgbench_history")[0][0])


def sums(database: Database) -> list[tuple[object, ...]]:
    return [checksum(database, table) for table in pgbench.TABLES]


def changes_arrived(target: Database) -> bool:
    if not target.execute("SELECT to_regclass('pgsluice.applied') IS NOT NULL")[0][0]:
        return False
    return bool(target.execute("SELECT coalesce(max(sequence), 0) > 0 FROM pgsluice.applied")[0][0])


def copy_under_fire(source: Database, target: Database, nats: NatsServer, group: str, writers: pgbench.Writers) -> None:
    keys = configuration(group, source, target, nats, **{"copy-and-stream": True, "copy-range-bytes": "1MiB"})
    with writers:
        wait_until(lambda: transactions(source) > 100, what="writes before the copy")
        with GroupUnderTest(keys):
            wait_until(
                lambda: changes_arrived(target), deadline_s=CATCH_UP_DEADLINE_S, what="changes after the copy", interval_s=0.2
            )
            after_copy = transactions(source)
            wait_until(lambda: transactions(source) > after_copy + 100, what="writes after the copy")
            writers.stop()
            wait_until(lambda: sums(source) == sums(target), deadline_s=CATCH_UP_DEADLINE_S, what="equal tables", interval_s=0.5)


def test_a_copy_under_fire_and_the_stream_after_it_leave_no_gap_and_no_doubled_row(
    source: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    """100,000 rows and 300 transactions a second: as many as two cores write and apply without being busy."""
    pgbench.initialize(source, 1)
    copy_under_fire(source, target_database, nats_server, group, pgbench.Writers(source, 1, tmp_path, rate=300))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", range(10))
def test_ten_copies_under_fire(
    source: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path, run: int
) -> None:
    pgbench.initialize(source, 3)
    copy_under_fire(source, target_database, nats_server, group, pgbench.Writers(source, 3, tmp_path))
