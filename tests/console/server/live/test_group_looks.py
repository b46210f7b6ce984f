"""What hinders the look at one group, or is none, hinders no other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from pgsluice.replicator.source.slot_look import ANSWER_DEADLINE_S
from pgsluice.shared.broker.bucket import find_groups
from pgsluice.shared.process.listening import listen
from tests.console.server.served import Served
from tests.console.server.test_orders import ask
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until

OTHERS = ("pgsluice_Theirs", "pgsluice_")


@pytest.fixture
def others(nats_server: NatsServer) -> Iterator[None]:
    """Buckets of somebody else, for as long as this test takes."""
    for name in OTHERS:
        ask(nats_server, lambda client, name=name: client.jetstream().create_key_value(bucket=name))  # type: ignore[misc]
    yield
    for name in OTHERS:
        ask(nats_server, lambda client, name=name: client.jetstream().delete_key_value(name))  # type: ignore[misc]


def groups(client: httpx.Client) -> set[str]:
    return {each["group"] for each in client.get("/groups").json()["groups"]}


@pytest.mark.usefixtures("others")
def test_a_bucket_of_somebody_else_is_passed_over(served: Served, nats_server: NatsServer) -> None:
    """Names that no group has would be an error, and hinder the group that comes after them."""
    ensure_bucket(nats_server.settings(), "ours")
    listed = ask(nats_server, find_groups)
    assert ("ours" in listed, {"Theirs", "theirs", ""} & set(listed)) == (True, set())
    with served.client() as client:
        assert client.get("/groups/ours").status_code == 200
        assert "ours" in groups(client)
        assert not {"Theirs", "theirs", ""} & groups(client)


def test_a_source_that_does_not_answer_holds_up_no_other_group(served: Served, nats_server: NatsServer) -> None:
    for group in ("slow", "quick"):
        ensure_bucket(nats_server.settings(), group)
    with closing(listen("127.0.0.1", 0, "silent")) as silent, served.client() as client:
        source = f"host: 127.0.0.1\nport: {silent.getsockname()[1]}\ndbname: d\nuser: u\n"
        assert client.put("/groups/slow/document", json={"yaml": f"group: slow\n{source}"}).status_code == 201
        wait_until(
            lambda: "has not answered" in str(client.get("/groups/slow").json()["status"]), deadline_s=60, what="the silence"
        )
        for wanted, shown in (("stopped", "stopped"), ("running", "draft")) * 2:
            change = {"state": wanted, "units": ["replicator"]}
            assert client.put("/groups/quick/desired", json=change).status_code == 202
            written_at = time.monotonic()

            def is_shown(shown: str = shown) -> bool:
                status = client.get("/groups/quick").json()["status"]
                return status is not None and bool(status["units"][0]["state"] == shown)

            wait_until(is_shown, deadline_s=30, what="the change")
            assert time.monotonic() - written_at < ANSWER_DEADLINE_S / 2
        assert client.delete("/groups/slow/document", headers={"If-Match": "*"}).status_code == 204
