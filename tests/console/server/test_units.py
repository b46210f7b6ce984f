"""States of processes over the API, and what they are to do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.unit_records import DesiredRecord, ProcessRecord, desired_key, process_key, worker_of_unit
from pgsluice.shared.broker.worker_records import (
    BatchesRecord,
    BatchRecord,
    LeaseRecord,
    WorkerReport,
    batches_key,
    lease_key,
    worker_key,
)
from pgsluice.shared.errors import Cause
from pgsluice.shared.process.pulse import Activity
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.served import Served
from tests.replicated_group import Group
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until


def run_unit(nats: NatsServer, group: str, unit: str, acknowledged: int = 0) -> None:
    """As a process tells of itself that works."""
    now = datetime.now(UTC).isoformat()
    record = ProcessRecord("h", 1, now, now, Activity.WORKING, now, acknowledged=acknowledged)

    async def put() -> None:
        async with connected(nats.settings(), "test") as client:
            bucket, worker = StateBucket(client, GroupNames(group)), worker_of_unit(unit)
            await bucket.put(process_key(unit), record)
            if worker is not None:
                await bucket.put(lease_key(worker), LeaseRecord("h", 1))

    asyncio.run(put())


def desired(nats: NatsServer, group: str, unit: str) -> DesiredRecord:
    async def read() -> DesiredRecord:
        async with connected(nats.settings(), "test") as client:
            entry = await StateBucket(client, GroupNames(group)).read(desired_key(unit), DesiredRecord)
            assert entry is not None
            return entry.value

    return asyncio.run(read())


def test_workers_are_paused_and_go_on(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "units")
    for unit in ("replicator", "worker.a", "worker.b"):
        run_unit(nats_server, "units", unit)
    with served.client(served.token("unit-operator", "operator")) as client:
        units = client.get("/groups/units/units").json()["units"]
        assert [(each["state"]["unit"], each["state"]["state"]) for each in units] == [
            ("replicator", "running"),
            ("worker.a", "running"),
            ("worker.b", "running"),
        ]
        wish = {"state": "paused", "units": ["worker.a"], "reason": "a release"}
        ordered = client.put("/groups/units/desired", json=wish)
        assert (ordered.status_code, ordered.headers["location"]) == (202, "/api/v1/groups/units/units")
        [unit] = ordered.json()["units"]
        assert (unit["state"]["state"], unit["desired"], unit["acknowledged"]) == ("pausing", "paused", 0)
        again = client.put("/groups/units/desired", json=wish)
        assert again.json()["units"][0]["revision"] == unit["revision"]
        written = desired(nats_server, "units", "worker.a")
        assert (written.by, written.reason) == ("unit-operator", "a release")
        everyone = client.put("/groups/units/desired", json={"state": "stopped"}).json()["units"]
        assert [(each["state"]["unit"], each["desired"]) for each in everyone] == [
            ("worker.a", "stopped"),
            ("worker.b", "stopped"),
        ]


def test_a_stop_is_lifted_by_no_pause_and_by_no_resume(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "stopped")
    run_unit(nats_server, "stopped", "worker.a")

    def after(**wish: str) -> str:
        return str(client.put("/groups/stopped/desired", json=wish).json()["units"][0]["desired"])

    with served.client(served.token("stop-operator", "operator")) as client:
        assert after(state="stopped") == "stopped"
        assert after(state="paused") == "stopped"
        assert after(state="running", instead_of="paused") == "stopped"
        assert after(state="paused") == "stopped"
        assert after(state="running", instead_of="stopped") == "paused"
        assert after(state="running", instead_of="stopped") == "paused"
        assert after(state="running") == "running"


def test_what_cannot_be_meant_is_refused(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "unitless")
    with served.client() as client:
        assert client.put("/groups/unitless/desired", json={"state": "paused"}).json()["where"] == "units"
        unknown = client.put("/groups/unitless/desired", json={"state": "paused", "units": ["worker.x"]})
        assert (unknown.status_code, "worker.x" in unknown.json()["detail"]) == (422, True)
        assert client.put("/groups/unitless/desired", json={"state": "resting"}).json()["where"] == "state"
        assert client.get("/groups/unitless/logs", params={"unit": "replicator"}).status_code == 404
    with served.client(served.token("unit-viewer")) as viewer:
        assert viewer.put("/groups/unitless/desired", json={"state": "paused"}).status_code == 403
        assert viewer.get("/groups/unitless/logs", params={"unit": "replicator"}).status_code == 403


def test_a_table_is_paused_where_all_sinks_can(served: Served, replication: Group) -> None:
    replication.replicate()
    path = f"/groups/{replication.name}/tables"
    replication.with_broker(lambda _, bucket: bucket.put(worker_key("w"), WorkerReport(0, two_lanes=True)))
    with served.client() as client:
        wish = {"tables": ["t"], "paused": True, "reason": "a migration"}
        [paused] = client.put(f"{path}/desired", json=wish).json()["tables"]
        assert (paused["table"], paused["by"], paused["reason"]) == ("t", "admin", "a migration")
        assert client.put(f"{path}/desired", json=wish).status_code == 202
        assert [each["table"] for each in client.get(path).json()["paused"]] == ["t"]
        assert client.put(f"{path}/desired", json={"tables": ["nothing"], "paused": True}).status_code == 422
        assert client.put(f"{path}/desired", json={"tables": ["t"], "paused": False}).status_code == 202
        assert client.get(path).json()["paused"] == []
        replication.with_broker(lambda _, bucket: bucket.put(worker_key("w"), WorkerReport(0)))
        refused = client.put(f"{path}/desired", json=wish)
        assert (refused.status_code, "none can wait alone" in refused.json()["detail"]) == (422, True)


def test_a_worker_is_shown_with_its_newest_batches(served: Served, replication: Group) -> None:
    replication.replicate()
    failed = BatchRecord("2026-01-31T12:00:01Z", "changes", 7, 0.2, 0.0, 0.1, 0.1, 3, 4.5, Cause.TARGET, "it does not answer")
    batches = BatchesRecord("2026-01-31T12:00:00Z", (replace(failed, attempts=1, waited_for=None, reason=""), failed))
    replication.with_broker(lambda _, bucket: bucket.put(worker_key("w"), WorkerReport(0, batches=2)))
    replication.with_broker(lambda _, bucket: bucket.put(batches_key("w"), batches))
    with served.client() as client:
        path = f"/groups/{replication.name}/workers"
        shown = wait_until(lambda: told_of(client, f"{path}/w"), what="the worker")
        assert [(each["attempts"], each["waited_for"]) for each in shown["batches"]] == [(3, "target"), (1, None)]
        assert (shown["worker"]["name"], shown["batches_since"]) == ("w", "2026-01-31T12:00:00Z")
        refused = client.get(f"{path}/nobody")
        assert (refused.status_code, refused.json()["remedy"]) == (404, "there are: w")


def told_of(client: httpx.Client, path: str) -> Any:
    answer = client.get(path)
    return answer.json() if answer.status_code == 200 else None
