"""Pipelines over the API: documents within the administrator's places, and runs that are asked for once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.console.pipelines.administrator import GOOD
from tests.console.server.placed import Place, placed
from tests.servers import NatsServer, PostgresServer


@pytest.fixture(scope="module")
def place(nats_server: NatsServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One whose server has a file of pipelines, too."""
    named = {"日報": {**GOOD, "group": "daily-report"}}
    with placed(nats_server, postgres, tmp_path_factory.mktemp("places"), "source_of_pipelines", named) as begun:
        yield begun


def test_a_document_has_a_revision_and_a_history(place: Place, group: str) -> None:
    with place.served.client() as client:
        created = place.put(client, group)
        assert (created.status_code, created.headers["location"]) == (201, f"/api/v1/pipelines/{group}")
        assert place.put(client, group).status_code == 428
        etag = created.headers["etag"]
        with ThreadPoolExecutor(4) as pool:
            codes = pool.map(lambda n: place.put(client, group, etag, tasks=n).status_code, range(1, 5))
            assert sorted(codes) == [200, 412, 412, 412]
        shown = client.get(f"/pipelines/{group}")
        assert (
            shown.json()["pipeline"] | {"problem": "", "target": "analytics.t", "sink": "warehouse"} == shown.json()["pipeline"]
        )
        assert len(client.get(f"/pipelines/{group}/history").json()["documents"]) == 2
        assert client.delete(f"/pipelines/{group}", headers={"If-Match": etag}).status_code == 412
        assert client.delete(f"/pipelines/{group}", headers={"If-Match": shown.headers["etag"]}).status_code == 204
        assert client.get(f"/pipelines/{group}").status_code == 404


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "payroll"}, "names source 'payroll'"),
        ({"sink": "lake"}, "names sink 'lake'"),
        ({"target": "public.users"}, "may not fill public.users"),
        ({"host": "db.evil.example"}, "unknown key 'host'"),
        ({"source": None}, "names no source"),
        ({"steps": [{"python": "os:system", "with": {"command": "id"}}]}, "names module 'os', which is not allowed"),
        ({"query": "  "}, "query"),
        ({"steps": [{"sql": "SELECT id,\n now() AS v FROM rows"}]}, "step 1 (sql) calls now, which"),
        ({"steps": [{"sql": "SELECT id FROM rows", "with": {"path": "/etc"}}]}, "with has no effect together with sql"),
    ],
)
def test_a_hostile_document_is_refused(place: Place, group: str, change: Mapping[str, Any], said: str) -> None:
    with place.served.client() as client:
        refused = place.put(client, group, **change)
        problem = refused.json()
        assert (refused.status_code, refused.headers["content-type"], problem["where"]) == (
            422,
            "application/problem+json",
            "yaml",
        )
        assert said in problem["detail"]
        assert problem["remedy"]
        assert client.get(f"/pipelines/{group}").status_code == 404


def test_one_put_behind_the_servers_back_is_shown_with_its_problem_and_does_not_run(place: Place, group: str) -> None:
    place.administrator.put(group, {**GOOD, "target": "public.users"})
    with place.served.client() as client:
        shown = client.get(f"/pipelines/{group}").json()["pipeline"]
        assert "may not fill public.users" in shown["problem"]
        for path in ("runs", "plan"):
            refused = client.post(f"/pipelines/{group}/{path}", json={})
            assert (refused.status_code, "may not fill public.users" in refused.text) == (422, True)
        assert not place.administrator.has_stream(group)
        assert client.delete(f"/pipelines/{group}", headers={"If-Match": "*"}).status_code == 204


@pytest.mark.long
def test_sql_put_behind_the_servers_back_is_not_run_either(place: Place, group: str) -> None:
    with place.served.client() as client:
        assert place.put(client, group, steps=[{"sql": "SELECT id, upper(v) AS v FROM rows"}]).status_code == 201
        planned = client.post(f"/pipelines/{group}/plan", json={})
        assert [column["type"] for column in planned.json()["columns"]] == ["bigint", "text"]
        hostile = "SELECT id, java_method('java.lang.System', 'getenv', 'HOME') AS v FROM rows"
        place.administrator.put(group, {**GOOD, "steps": [{"sql": hostile}]})
        refused = client.post(f"/pipelines/{group}/plan", json={})
        assert (refused.status_code, "step 1 (sql) calls java_method" in refused.text) == (422, True)
        code, log = place.administrator.run(group)
        assert (code, "step 1 (sql) calls java_method" in log) == (2, True)


def test_two_documents_do_not_share_a_group(place: Place, group: str) -> None:
    with place.served.client() as client:
        assert place.put(client, f"{group}-a", group=group).status_code == 201
        refused = place.put(client, f"{group}-b", group=group)
        assert (refused.status_code, f"the group of pipeline '{group}-a'" in refused.text) == (422, True)
        assert client.put(f"/groups/{group}-x/document", json={"yaml": f"group: {group}-x\n"}).status_code == 201
        refused = place.put(client, f"{group}-c", group=f"{group}-x")
        assert (refused.status_code, "has a separate configuration" in refused.text) == (422, True)


def test_a_plan_says_what_would_be_read(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group)
        planned = client.post(f"/pipelines/{group}/plan", json={}).json()
        assert (planned["rows"], planned["batches"], planned["is_full"]) == (9, 1, True)
        assert planned["columns"] == [{"name": "id", "type": "bigint"}, {"name": "v", "type": "text"}]
        assert not place.administrator.has_stream(group)


def test_a_schedule_that_nobody_executes_is_shown_without_a_next_tick(place: Place, group: str) -> None:
    with place.served.client() as client:
        assert place.put(client, group, **{"schedule": "*/15 * * * *", "time-zone": "Europe/Berlin"}).status_code == 201
        shown = client.get(f"/pipelines/{group}").json()["pipeline"]
        assert (shown["schedule"], shown["next_tick"]) == ("*/15 * * * * Europe/Berlin", "")
        assert client.get(f"/pipelines/{group}/runs").json()["ticks"]["schedule"] == "*/15 * * * * Europe/Berlin"


def test_a_run_is_asked_for_once_however_often_the_request_comes(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group)
        path, key = f"/pipelines/{group}/runs", {"Idempotency-Key": f"nightly-{group}"}
        first = client.post(path, json={}, headers=key)
        assert first.status_code == 202
        assert client.post(path, json={}, headers=key).text == first.text
        assert client.post(path, json={"full": True}, headers=key).status_code == 422
        request = client.get(first.headers["location"].removeprefix("/api/v1")).json()
        assert (request["state"], request["full"]) == ("requested", False)
        assert len(client.get(path).json()["requests"]) == 1
        assert place.run(group, request["id"]) == 0
        assert client.get(f"{path}/1").json() | {"state": "finished", "rows": 9, "attempts": 1} == client.get(f"{path}/1").json()
        assert client.get(f"/pipelines/{group}").json()["pipeline"]["newest"]["run"] == 1


def test_rows_that_cannot_be_read_are_listed_without_their_keys(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group, query="SELECT id, 1 / (id - 5) AS v FROM t")
        assert place.run(group) == 0
        run = client.get(f"/pipelines/{group}/runs/1").json()
        assert (run["state"], run["rows"], run["rows_read"], run["dead"]) == ("finished", 9, 8, 1)
        [letter] = client.get(f"/groups/{group}/dead").json()["letters"]
        reason = f"the query of pipeline '{group}' failed (SQLSTATE 22012)"
        assert (letter["worker"], letter["state"], letter["reason"]) == ("RUN", "dead", reason)
        assert not {"row", "key"} & letter.keys()


def test_what_is_left_of_a_run_is_paused_resumed_and_cancelled(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group, "", query="SELECT id, 1 / (id - 5) AS v FROM t", **{"max-dead-letters": 0})
        assert place.run(group) != 0
        run = f"/pipelines/{group}/runs/1"
        assert client.get(run).json()["state"] == "failed"
        assert client.post(f"{run}/pause", json={}).status_code == 202
        assert client.get(f"/pipelines/{group}").json()["pipeline"]["is_paused"]
        assert client.post(f"{run}/resume", json={}).status_code == 202
        assert not client.get(f"/pipelines/{group}").json()["pipeline"]["is_paused"]
        cancelled = client.post(f"{run}/cancel", json={})
        assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
        assert client.post(f"{run}/cancel", json={}).status_code == 202
        assert client.post(f"{run}/pause", json={}).status_code == 409
        assert client.post(f"{run.removesuffix('1')}2/pause", json={}).status_code == 404


def test_viewers_look_operators_run_admins_write(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group)
    for role, put, ask in (("viewer", 403, 403), ("operator", 403, 202)):
        with place.served.client(place.served.token(f"{role}-{group}", role)) as client:
            assert client.get("/pipelines").status_code == 200
            assert place.put(client, group, "*").status_code == put
            assert client.post(f"/pipelines/{group}/runs", json={}).status_code == ask


def test_a_token_of_other_groups_neither_sees_nor_replaces_a_pipeline(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group)
        of_group = client.get(f"/pipelines/{group}").json()["pipeline"]["group"]
    path = f"/pipelines/{group}"
    own = place.served.token(f"own-{group}", "admin", values=True, groups=of_group)
    other = place.served.token(f"other-{group}", "admin", values=True, groups="others")
    with place.served.client(own) as client:
        assert [each["name"] for each in client.get("/pipelines").json()["pipelines"]] == [group]
        assert client.get(path).status_code == 200
    with place.served.client(other) as client:
        assert client.get("/pipelines").json()["pipelines"] == []
        for below in ("", "/history", "/runs", "/runs/1", "/requests/1"):
            assert client.get(path + below).status_code == 404, below
        for below in ("/plan", "/runs", "/runs/1/pause", "/runs/1/resume", "/runs/1/cancel"):
            assert client.post(path + below, json={}).status_code == 404, below
        assert client.delete(path, headers={"If-Match": "*"}).status_code == 404
        refused = [place.put(client, group, "*"), place.put(client, group, "*", group="others"), place.put(client, f"{group}-2")]
        assert [answer.status_code for answer in refused] == [403, 403, 403]
    with place.served.client(own) as client:
        assert client.get(path).status_code == 200
    place.administrator.put(f"unreadable-{group}", {**GOOD, "mode": "backwards"})
    for token in (own, other):
        with place.served.client(token) as client:
            assert client.get(f"/pipelines/unreadable-{group}").status_code == 404, "it may be of any group"
    with place.served.client() as client:
        assert client.get(f"/pipelines/unreadable-{group}").json()["pipeline"]["problem"]
        assert client.delete(f"/pipelines/unreadable-{group}", headers={"If-Match": "*"}).status_code == 204


def test_no_answer_holds_what_the_places_hold(place: Place, group: str) -> None:
    with place.served.client() as client:
        place.put(client, group)
        texts = [client.get(path).text for path in ("/pipelines", f"/pipelines/{group}", f"/pipelines/{group}/history")]
        assert not [text for text in texts if "shop.yaml" in text or "warehouse.yaml" in text or "SHOP_PASSWORD" in text]


def test_a_pipeline_of_the_file_may_have_any_name(place: Place) -> None:
    with place.served.client() as client:
        asked = client.post("/pipelines/日報/runs", json={})
        assert asked.status_code == 202
        followed = client.get(asked.headers["location"].removeprefix("/api/v1"))
        assert followed.json() == asked.json()
