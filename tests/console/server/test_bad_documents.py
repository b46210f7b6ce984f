"""A document that a client writes without the API harms its own group, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.console.control_records import write_record
from tests.console.server.served import Served
from tests.console.server.strangers import write_document
from tests.servers import NatsServer
from tests.waiting import wait_until

WAYS: dict[str, Callable[[NatsServer], None]] = {
    "a key that is no group's name": lambda nats: write_document(nats, "A", "A"),
    "a key of several parts": lambda nats: write_document(nats, "bad.deep", "bad.deep"),
    "another group's name inside": lambda nats: write_document(nats, "bad-name", "A"),
    "another group's settings": lambda nats: write_record(
        nats, "group.bad-settings", json.dumps({"group": "bad-settings", "settings": {"group": "other"}}).encode()
    ),
    "no JSON": lambda nats: write_record(nats, "group.bad-json", b"{"),
    "nested without end": lambda nats: write_record(nats, "group.bad-depth", b"[" * 100_000),
    "settings that are no texts": lambda nats: write_document(nats, "bad-kinds", "bad-kinds", workers={"a": [1]}, host=7),
    "a worker of no valid name": lambda nats: write_document(nats, "bad-worker", "bad-worker", workers=["x.>=file"]),
    "a host that is no name": lambda nats: write_document(nats, "bad-host", "bad-host", host="a..b", dbname="d", user="u"),
    "a character that ends texts": lambda nats: write_document(nats, "bad-nul", "bad-nul", host="a\0b", dbname="d", user="u"),
    "a secret that is written out": lambda nats: write_document(nats, "bad-secret", "bad-secret", password="m4rk3r"),
    "more than fits": lambda nats: write_document(nats, "bad-size", "bad-size", tables=["x" * 60] * 4000),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_document_that_cannot_be_used_harms_no_other_group(served: Served, nats_server: NatsServer, way: str) -> None:
    group = f"beside-{list(WAYS).index(way)}"
    WAYS[way](nats_server)
    with served.client() as client:
        assert client.put(f"/groups/{group}/document", json={"yaml": f"group: {group}\n"}).status_code == 201
        wait_until(lambda: client.get(f"/groups/{group}").json().get("status"), what="a look at the other group")
        assert group in {each["group"] for each in client.get("/groups").json()["groups"]}
        assert group in {each["group"] for each in client.get("/documents").json()["documents"]}
        exported = client.get("/export")
        assert (exported.status_code, f'group: "{group}"' in exported.text, "m4rk3r" in exported.text) == (200, True, False)
        assert client.get("/pipelines").status_code == 200


def test_a_revision_that_cannot_be_read_hides_no_other(served: Served, nats_server: NatsServer) -> None:
    with served.client() as client:
        path = "/groups/revised/document"
        first = client.put(path, json={"yaml": "group: revised\n"}).json()["revision"]
        write_document(nats_server, "revised", "revised", password="m4rk3r")
        assert client.get(path).status_code == 409
        shown = client.get(f"{path}/history")
        assert [each["revision"] for each in shown.json()["documents"]] == [first]
        assert "m4rk3r" not in shown.text
