"""What hinders the look at one group, or is none, hinders no other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pgsluice.replicator.source.slot_look import ANSWER_DEADLINE_S
from pgsluice.shared.broker.bucket import find_groups
from pgsluice.shared.process.listening import listen
from tests.console.server.served import Served
from tests.console.server.test_orders import ask
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """Of this test alone."""
    with NatsServer() as server:
        yield server


def test_a_bucket_of_somebody_else_is_passed_over(nats: NatsServer, tmp_path: Path) -> None:
    for name in ("pgsluice_Theirs", "pgsluice_"):
        ask(nats, lambda client, name=name: client.jetstream().create_key_value(bucket=name))  # type: ignore[misc]
    ensure_bucket(nats.settings(), "ours")
    assert ask(nats, find_groups) == ["ours"]
    with Served(nats.url, tmp_path) as server, server.client() as client:
        wait_until(lambda: client.get("/groups").json()["groups"], deadline_s=30, what="the group")
        assert [each["group"] for each in client.get("/groups").json()["groups"]] == ["ours"]


def test_a_source_that_does_not_answer_holds_up_no_other_group(nats: NatsServer, tmp_path: Path) -> None:
    for group in ("slow", "quick"):
        ensure_bucket(nats.settings(), group)
    with closing(listen("127.0.0.1", 0, "silent")) as silent, Served(nats.url, tmp_path) as server, server.client() as client:
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
                return bool(client.get("/groups/quick").json()["status"]["units"][0]["state"] == shown)

            wait_until(is_shown, deadline_s=30, what="the change")
            assert time.monotonic() - written_at < ANSWER_DEADLINE_S / 2
