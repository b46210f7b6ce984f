"""A worker that is frozen cannot say so itself; another process does, within a minute."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.endpoints import address_of, scraped
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

WORKER = "worker.postgres"


def state_of_worker(keys: dict[str, Any]) -> str:
    with PgsluiceProcess("status", "--json", config=keys) as status:
        status.wait()
        units = json.loads(status.stdout())["units"]
    return str(next(unit["state"] for unit in units if unit["unit"] == WORKER))


@pytest.mark.long  # it takes the half minute after which silence means something
def test_a_frozen_worker_is_seen_by_the_replicator_and_by_status_within_a_minute(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    keys = configuration(group, source_database, target_database, nats_server, **{"metrics-listen": "127.0.0.1:0"})
    with GroupUnderTest(keys) as running:
        running.worker.wait_for_log("reading")
        address = address_of(running.replicator)

        def silence_s() -> float:
            return scraped(address).get("pgsluice_unit_silence_seconds", {}).get((WORKER,), 0.0)

        wait_until(lambda: 0 < silence_s() < 30, what="a record of the worker")
        frozen_at = time.monotonic()
        running.worker.pause_all()
        wait_until(lambda: silence_s() > 30, deadline_s=60, what="a worker that is silent", interval_s=0.5)
        wait_until(lambda: state_of_worker(keys) == "unknown", deadline_s=60, what="a state", interval_s=0.5)
        assert time.monotonic() - frozen_at < 60
        running.worker.kill()
