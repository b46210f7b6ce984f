"""Groups that are documents so far: they are seen, with the units that are to be; and what a new document changes is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.console.server.live.test_event_stream import heard
from tests.console.server.served import Served
from tests.servers import Database, NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until


def document(group: str, **options: object) -> dict[str, str]:
    given = {"group": group, "workers": ["lake=file"]} | options
    return {"yaml": "".join(f"{name}: {value}\n" for name, value in given.items())}


def states(client: httpx.Client, group: str) -> dict[str, str]:
    units = client.get(f"/groups/{group}/units").json()["units"]
    return {each["state"]["unit"]: each["state"]["state"] for each in units}


def until_seen(client: httpx.Client, group: str, is_right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The group's view, when it is as it should be."""

    def view() -> dict[str, Any] | None:
        answer = client.get(f"/groups/{group}")
        return answer.json() if answer.status_code == 200 and is_right(answer.json()) else None

    found = wait_until(view, what=f"the view of {group}")
    assert found is not None
    return found


def test_a_document_is_a_group_of_drafts_until_it_is_deleted(served: Served) -> None:
    with served.client() as client:
        written = client.put("/groups/draft-a/document", json=document("draft-a")).json()
        view = until_seen(client, "draft-a", lambda view: view["status"] is not None)
        assert view["document"] == written["revision"]
        assert [(each["unit"], each["state"]) for each in view["status"]["units"]] == [
            ("replicator", "draft"),
            ("worker.lake", "draft"),
        ]
        assert states(client, "draft-a") == {"replicator": "draft", "worker.lake": "draft"}
        assert client.get("/groups/draft-a/tables").json() == {"tables": [], "orders": [], "paused": []}
        assert client.get("/groups/draft-a/dead").json() == {"letters": []}
        assert client.get("/groups/draft-a/alerts").json()["is_watched"] is False
        refused = client.put("/groups/draft-a/desired", json={"state": "paused"})
        assert (refused.status_code, "never started" in refused.json()["detail"]) == (409, True)
        assert client.delete("/groups/draft-a/document", headers={"If-Match": "*"}).status_code == 204
        wait_until(lambda: client.get("/groups/draft-a").status_code == 404, what="its end")


def test_a_worker_that_was_never_started_is_a_draft_beside_others(served: Served, nats_server: NatsServer) -> None:
    ensure_bucket(nats_server.settings(), "draft-b")
    with served.client() as client:
        assert states(client, "draft-b") == {"replicator": "draft"}
        client.put("/groups/draft-b/document", json=document("draft-b"))
        until_seen(client, "draft-b", lambda view: len((view["status"] or {"units": []})["units"]) == 2)
        assert states(client, "draft-b") == {"replicator": "draft", "worker.lake": "draft"}
        wish = {"state": "stopped", "units": ["worker.lake"]}
        assert client.put("/groups/draft-b/desired", json=wish).status_code == 202
        assert states(client, "draft-b")["worker.lake"] == "stopped"


@pytest.fixture
def events(served: Served) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    with served.client() as client, client.stream("GET", "/events") as answer:
        yield heard(answer)


def test_a_document_that_is_applied_again_never_takes_its_group_away(
    served: Served, nats_server: NatsServer, events: Iterator[tuple[str, dict[str, Any]]]
) -> None:
    ensure_bucket(nats_server.settings(), "draft-c")
    with served.client() as client:
        for number in range(3):
            wish = document("draft-c", **{"check-interval": f"{10 + number}s"})
            revision = client.put("/groups/draft-c/document", json=wish, headers={"If-Match": "*"}).json()["revision"]
            kinds = []
            for kind, content in events:
                if content["group"] == "draft-c":
                    kinds.append(kind)
                    if content.get("document") == revision:
                        break
            assert set(kinds) == {"group"}


def test_the_source_of_a_document_without_nats_url_is_looked_at(served: Served, source_database: Database) -> None:
    """It means the server's NATS."""
    source = source_database.settings
    with served.client() as client:
        wish = document("draft-d", host=source.host, port=source.port, dbname=source.dbname, user=source.user)
        assert client.put("/groups/draft-d/document", json=wish).status_code == 201
        view = until_seen(client, "draft-d", lambda view: view["status"] is not None)
        assert (view["status"]["source_problem"], view["status"]["slot"]) == ("", None)
        found = client.post("/groups/draft-d/check").json()["report"]
        assert {"source", "nats"} <= set(found["looked_at"])
