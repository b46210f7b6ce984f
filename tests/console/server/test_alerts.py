"""Alerts are set over the API, and the group's processes obey: a test is sent by the one that tells people."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from pgsluice.replicator.tasks import cancel
from pgsluice.shared.alerts.alert_watch import AlertWatch
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.process.retrying import Pauses
from pgsluice.shared.wire.names import GroupNames
from tests.alerting import alerts_to
from tests.console.server.served import Served
from tests.console.server.test_orders import publish_letters
from tests.servers import NatsServer
from tests.servers.http_server import HttpServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until

SILENCE = {"until": (datetime.now(UTC) + timedelta(hours=1)).isoformat(), "alert": "dead-letters", "reason": "a migration"}


@contextmanager
def alerting(nats: NatsServer, group: str, url: str = "") -> Iterator[None]:
    """As a process of the group that was started to tell ``url``, or without knowing whom to tell."""
    ended = threading.Event()

    async def watch() -> None:
        async with connected(nats.settings(), "test") as client:
            watching = AlertWatch(alerts_to(url), GroupNames(group), "replicator", lambda: client, Pauses(0.05, 0.1))
            task = asyncio.create_task(watching.run())
            await asyncio.to_thread(ended.wait)
            await cancel([task])

    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_what_is_set_is_obeyed_and_a_test_arrives(
    served: Served, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_letters(nats_server, "alerting", 1)
    path = "/groups/alerting/alerts"
    with HttpServer() as receiver, alerting(nats_server, "alerting"), served.client() as client:
        assert client.get(path).json()["is_watched"] is False
        missing = client.put(path, json={"webhook": "${ALERT_THAT_NOBODY_SET}"})
        assert missing.status_code == 200
        monkeypatch.setenv("OUR_ALERTS", receiver.url)
        wanted = {"webhook": "${OUR_ALERTS}", "repeat_s": 3600, "silences": [SILENCE]}
        etag = client.put(path, json=wanted, headers={"If-Match": missing.headers["etag"]}).headers["etag"]
        shown = wait_until(lambda: (answer := client.get(path).json())["alerts"] and answer, what="a look")
        assert (shown["alerts"][0]["alert"], shown["alerts"][0]["told_at"]) == ("dead-letters", "")
        assert (shown["holder"].split()[0], shown["problem"]) == ("replicator", "")
        asked = client.post(f"{path}/test", json={})
        assert asked.status_code == 202
        done = wait_until(
            lambda: (answer := client.get(f"{path}/test").json())["done_at"] and answer, what="the outcome of the test"
        )
        assert (done["outcomes"], done["id"]) == ({"webhook": ""}, asked.json()["id"])
        assert [each["alert"] for request in receiver.requests for each in request.objects] == ["test"]
        client.put(path, json={"webhook": "${OUR_ALERTS}"}, headers={"If-Match": etag})
        wait_until(lambda: len(receiver.requests) == 2, what="the alert that was silenced")
        assert receiver.requests[1].objects[0]["alert"] == "dead-letters"


def test_settings_have_a_revision_and_no_secrets(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "quiet")
    path = "/groups/quiet/alerts"
    with served.client() as client, served.client(served.token("night-shift", "operator")) as operator:
        assert client.get(f"{path}/test").status_code == 404
        for wrong in (
            {"webhook": "https://hooks.example.com/m4rk3r"},
            {"webhook": "${ALERT_URL}/m4rk3r"},
            {"webhook": "${PGSLUICE_PASSWORD}"},
            {"token": "${AWS_SECRET_ACCESS_KEY}"},
            {"lag_s": -1},
            {"silences": [{"until": "tomorrow"}]},
        ):
            refused = client.put(path, json=wrong)
            assert (refused.status_code, "m4rk3r" in refused.text) == (422, False)
        first = client.put(path, json={"webhook": "${ALERT_URL}", "for_s": 30})
        assert client.get(path).headers["etag"] == first.headers["etag"]
        assert client.put(path, json={"for_s": 60}).status_code == 428
        mine = {"webhook": "${ALERT_URL}", "silences": [SILENCE]}
        second = operator.put(path, json=mine, headers={"If-Match": first.headers["etag"]})
        assert second.json()["silences"][0]["by"] == "night-shift"
        assert client.put(path, json={}, headers={"If-Match": first.headers["etag"]}).status_code == 412
        for elsewhere in ({"webhook": "${OTHER_ALERTS}"}, {"webhook": "${ALERT_URL}", "token": "${OTHER_ALERTS}"}):
            assert operator.put(path, json=elsewhere, headers={"If-Match": second.headers["etag"]}).status_code == 403
        kept = client.put(path, json=mine | {"for_s": 1}, headers={"If-Match": "*"}).json()
        assert kept["silences"][0]["by"] == "night-shift"
