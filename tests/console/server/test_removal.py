"""What is removed over the API, by whoever writes its name; and what groups raise alarm about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from nats.aio.client import Client

from pgsluice.shared.alerts.alert_state import ALERTS_KEY, AlertRecord, AlertsRecord
from pgsluice.shared.alerts.conditions import AlertName, AlertSeverity
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.worker_records import lease_key
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.served import Served
from tests.recorded_group import record
from tests.replicated_group import Group
from tests.servers import NatsServer


def with_client(nats: NatsServer, work: Callable[[Client], Awaitable[object]]) -> None:
    async def call() -> None:
        async with connected(nats.settings(), "test") as client:
            await work(client)

    asyncio.run(call())


def test_a_group_is_dropped_by_its_name_alone(served: Served, replication: Group) -> None:
    replication.replicate()
    path = f"/groups/{replication.name}/drop"
    with served.client() as client:
        assert client.post(path, json={"name": "other"}).json()["where"] == "name"
        unknown = client.post(path, json={"name": replication.name})
        assert (unknown.status_code, "is not known here" in unknown.json()["detail"]) == (409, True)
        settings = replication.source.settings
        document = (
            f"group: {replication.name}\nnats-url: {replication.nats.url}\nhost: {settings.host}\nport: {settings.port}\n"
            f"dbname: {settings.dbname}\nuser: {settings.user}\n"
        )
        assert client.put(f"/groups/{replication.name}/document", json={"yaml": document}).status_code == 201
        assert client.post(path, json={"name": replication.name}).status_code == 204
    slots = "SELECT FROM pg_replication_slots WHERE slot_name = %s"
    assert replication.source.execute(slots, [replication.names.slot]) == []
    with served.client(served.token("drop-operator", "operator")) as operator:
        assert operator.post(path, json={"name": replication.name}).status_code == 403


def test_a_worker_is_forgotten_that_does_not_run(served: Served, nats_server: NatsServer) -> None:
    with_client(nats_server, lambda client: record(client, "forgetful"))
    path = "/groups/forgetful/workers/archive/forget"
    with served.client() as client:
        running = client.post(path, json={"name": "archive"})
        assert (running.status_code, "runs" in running.json()["detail"]) == (409, True)
        with_client(nats_server, lambda client: StateBucket(client, GroupNames("forgetful")).delete(lease_key("archive")))
        assert client.post(path, json={"name": "postgres"}).json()["where"] == "name"
        assert client.post(path, json={"name": "archive"}).status_code == 204
        assert client.post(path, json={"name": "archive"}).status_code == 422
        names = [each["state"]["unit"] for each in client.get("/groups/forgetful/units").json()["units"]]
        assert names == ["replicator", "worker.postgres"]


def test_alerts_are_those_that_the_group_keeps(served: Served, nats_server: NatsServer) -> None:
    with_client(nats_server, lambda client: record(client, "alarmed"))
    with served.client() as client:
        unwatched = client.get("/groups/alarmed/alerts").json()
        assert (unwatched["is_watched"], unwatched["alerts"]) == (False, [])
        now = datetime.now(UTC).isoformat()
        alert = AlertRecord(next(iter(AlertName)), "postgres", AlertSeverity.WARNING, "it lags", "look", now)
        kept = AlertsRecord("replicator", 10.0, (alert,))
        with_client(nats_server, lambda client: StateBucket(client, GroupNames("alarmed")).put(ALERTS_KEY, kept))
        watched = client.get("/groups/alarmed/alerts").json()
        [shown] = watched["alerts"]
        assert (watched["is_watched"], watched["holder"]) == (True, "replicator")
        assert (shown["fact"], shown["subject"]) == ("it lags", "postgres")
