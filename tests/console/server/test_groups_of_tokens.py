"""A token for some groups sees nothing of other groups, and can order nothing there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from pgsluice.console.program import run
from pgsluice.console.server.api.table import all_endpoints
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from tests.console.server.live.test_event_stream import heard, write
from tests.console.server.served import Served
from tests.misses import no_misses
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

OWN, OTHER = "teama-shop", "teamb-shop"
ENDPOINTS = all_endpoints("")
TRIED = {
    "get_api": "of no group",
    "get_health": "of no group",
    "get_openapi_json": "of no group",
    "delete_session": "of no group",
    "get_groups": "test_lists_hold_the_tokens_groups",
    "get_documents": "test_lists_hold_the_tokens_groups",
    "get_export": "test_lists_hold_the_tokens_groups",
    "get_audit": "test_the_audit_tells_what_was_done_to_the_tokens_groups",
    "get_events": "test_nothing_is_heard_of_other_groups",
    "post_rules_test": "test_requests_that_name_another_group_are_refused",
    "post_plan": "test_requests_that_name_another_group_are_refused",
    "post_apply": "test_requests_that_name_another_group_are_refused",
}
"""Endpoints without a group in their path, and what shows of each that it keeps groups apart. Those of pipelines are tried with
pipelines, in test_pipelines."""


@pytest.fixture(scope="module")
def bound(served: Served, nats_server: NatsServer) -> Iterator[httpx.Client]:
    """An admin of one team, on a NATS with groups of two, each with a document and an entry in the audit."""
    with served.client() as admin:
        for group in (OWN, OTHER):
            ensure_bucket(nats_server.settings(), group)
            assert admin.put(f"/groups/{group}/document", json={"yaml": f"group: {group}"}).status_code in (200, 201)
            assert admin.get(f"/groups/{group}").status_code == 200
    with served.client(served.token("teama", "admin", values=True, groups="teama-*,a")) as client:
        yield client


def test_every_endpoint_with_a_group_in_its_path_refuses_another_group(bound: httpx.Client) -> None:
    wrong = []
    for endpoint in ENDPOINTS:
        if "{group}" not in endpoint.path:
            continue
        path = re.sub("{[a-z]+}", "1", endpoint.path.replace("{group}", OTHER))
        answer = bound.request(endpoint.verb, path, **({"json": {}} if endpoint.verb != "GET" else {}))  # type: ignore[arg-type]
        if answer.status_code != 403 or "is for the groups teama-*, a" not in answer.text:
            wrong.append(f"{endpoint.name}: {answer.status_code}")
    no_misses(wrong, "a token of other groups is let in here")
    assert bound.get(f"/groups/{OWN}/document").status_code == 200


def test_every_other_endpoint_is_tried_with_a_token_of_some_groups() -> None:
    others = {each.name for each in ENDPOINTS if "{group}" not in each.path and not each.path.startswith("/pipelines")}
    no_misses(others ^ TRIED.keys(), "say here what shows that it keeps groups apart")


def test_lists_hold_the_tokens_groups(bound: httpx.Client) -> None:
    for path in ("/groups", "/documents", "/export"):
        told = bound.get(path).text
        assert (OWN in told, OTHER in told) == (True, False), path
    assert bound.get("/").json()["groups"] == ["teama-*", "a"]


def test_requests_that_name_another_group_are_refused(bound: httpx.Client) -> None:
    both = {"documents": [f"group: {OWN}", f"group: {OTHER}"]}
    for path, body in (("/plan", both), ("/apply", both), ("/rules/test", {"group": OTHER})):
        answer = bound.post(path, json=body)
        assert (answer.status_code, "is for the groups" in answer.text) == (403, True), path
    assert bound.post("/plan", json={"documents": [f"group: {OWN}"]}).status_code == 200


def test_the_audit_tells_what_was_done_to_the_tokens_groups(served: Served, bound: httpx.Client) -> None:
    """And nothing of what was done to other groups too, or to none."""
    both = {"documents": [f"group: {OWN}", f"group: {OTHER}"]}
    bound.put(f"/groups/{OTHER}/desired", json={"state": "paused"})
    with served.client() as admin, served.browser() as leaving:
        assert admin.post("/plan", json=both).status_code == 200
        assert leaving.delete("/session").status_code == 204
        assert admin.post("/plan", json={"documents": []}).status_code == 422
        told = [entries(client, is_refused=is_refused) for client in (admin, bound) for is_refused in (False, True)]
    assert [OWN, OTHER] in told[0]
    assert [] in told[0]
    assert [] in told[1]
    assert [OWN] in told[2]
    assert not [groups for groups in (*told[2], *told[3]) if groups != [OWN]]


def entries(client: httpx.Client, *, is_refused: bool) -> list[list[str]]:
    """The groups of each."""
    page = client.get("/audit", params={"limit": "500", "refused": str(is_refused).lower()}).json()
    return [each["entry"]["groups"] for each in page["entries"]]


def test_nothing_is_heard_of_other_groups(bound: httpx.Client, nats_server: NatsServer) -> None:
    with bound.stream("GET", "/events") as answer:
        events, groups = heard(answer), list[str]()
        groups.append(next(events)[1]["group"])
        for number, group in ((1, OTHER), (2, OWN)):
            write(nats_server, group, worker_key("w"), WorkerReport(number))
        for _, content in events:
            groups.append(content["group"])
            if content["status"] and content["status"]["workers"]:
                break
    assert set(groups) == {OWN}


def test_a_token_of_an_older_version_is_for_all_groups(served: Served, bound: httpx.Client) -> None:
    tokens = served.state_directory / "tokens.json"
    text = served.token("older")
    tokens.write_text(re.sub(r',\s*"groups": \[\s*"\*"\s*\]', "", tokens.read_text()))
    assert '"*"' not in tokens.read_text()
    with served.client(text) as client:
        told = client.get("/groups").text
        assert (OWN in told, OTHER in told) == (True, True)
    assert bound.get("/groups").status_code == 200


@pytest.mark.parametrize("groups", ["", "shop,team/a", "SHOP", "shop?"])
def test_what_no_group_can_be_called_is_refused(served: Served, groups: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["token", "create", "wrong", "--groups", groups, "--server-state-dir", str(served.state_directory)]
    assert run(arguments) == 2
    assert "is neither the name of a group" in capsys.readouterr().err
