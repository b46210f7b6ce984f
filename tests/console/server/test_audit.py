"""The audit holds every write, whatever is done to keep one out of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from nats.js.errors import APIError

from pgsluice.console.server.api.server_api import MOST_ENTRIES
from pgsluice.shared.broker.connection import connected
from tests.console.server.served import Served
from tests.console.server.test_orders import ask, letters_in, publish_letters
from tests.servers import NatsServer


def entries(client: httpx.Client) -> list[dict[str, Any]]:
    page = client.get("/audit", params={"limit": str(MOST_ENTRIES)}).json()
    return [each["entry"] for each in page["entries"]]


def test_a_reason_that_no_entry_takes_is_refused_before_anything_is_done(served: Served, nats_server: NatsServer) -> None:
    [letter] = publish_letters(nats_server, "unreasonable", 1)
    with served.client() as client:
        refused = client.post("/groups/unreasonable/dead/discard", json={"all": True, "reason": "x" * 1_048_400})
        assert letters_in(nats_server, "unreasonable") == [(letter, False)]
        assert (refused.status_code, refused.json()["where"]) == (422, "reason")
        newest = entries(client)[0]
        assert (newest["action"], newest["target"]) == ("post_groups_group_dead_discard", "unreasonable")
        assert newest["outcome"] == "the request is not what it has to be"


def test_a_write_after_the_audit_was_removed_is_in_a_new_one(served: Served, nats_server: NatsServer) -> None:
    with served.client() as client:
        ask(nats_server, lambda connection: connection.jetstream().delete_stream("pgsluice-audit"))
        answer = client.put("/groups/unseen/document", json={"yaml": "group: unseen", "reason": "nobody looks"})
        assert answer.status_code == 201
        assert [(each["target"], each["outcome"], each["reason"]) for each in entries(client)] == [
            ("unseen", "done", "nobody looks")
        ]


async def test_nobody_takes_an_entry_out_again(served: Served, nats_server: NatsServer) -> None:
    with served.client() as client:
        client.delete("/groups/kept/document")
        newest = client.get("/audit", params={"limit": "1"}).json()["entries"][0]["sequence"]
    async with connected(nats_server.settings(), "test") as connection:
        jetstream = connection.jetstream()
        for removal in (jetstream.delete_msg("pgsluice-audit", newest), jetstream.purge_stream("pgsluice-audit")):
            with pytest.raises(APIError):
                await removal
