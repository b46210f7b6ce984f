"""Messages, traces and the rule bench, over the API."""

from __future__ import annotations

import httpx
import pytest

from tests.console.server.served import Served
from tests.replicated_group import Group

RULES = """
tables:
  t:
    - type: filter
      column: v
      parameters: {operator: ne, value: bad}
    - type: transform
      column: v
      parameters: {type: mask, mask_char: "*"}
"""


@pytest.fixture
def changed(replication: Group, served: Served) -> Group:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'good'), (2, 'bad')")
    replication.replicate()
    replication.source.execute("UPDATE t SET v = 'better' WHERE id = 1")
    replication.replicate()
    return replication


def test_messages_and_traces_need_the_right_to_values(served: Served, changed: Group) -> None:
    path = f"/groups/{changed.name}"
    with served.client(served.token("blind", "admin")) as blind:
        for answer in (blind.get(f"{path}/messages"), blind.post(f"{path}/trace", json={"table": "t", "key": {"id": "1"}})):
            assert answer.status_code == 403
            assert "may not see row values" in answer.json()["detail"]
            assert "good" not in answer.text


def test_messages_are_shown(served: Served, changed: Group) -> None:
    with served.client() as client:
        page = client.get(f"/groups/{changed.name}/messages", params={"start": "1", "limit": "2"}).json()
        assert [change["after"] for change in page["messages"][0]["changes"]] == [{"id": 1, "v": "good"}, {"id": 2, "v": "bad"}]
        following = client.get(f"/groups/{changed.name}/messages", params={"start": str(page["next_sequence"])}).json()
        assert [message["sequence"] for message in following["messages"]] == [2]
        assert client.get(f"/groups/{changed.name}/messages", params={"limit": "0"}).json()["where"] == "limit"


def test_a_row_is_traced(served: Served, changed: Group) -> None:
    with served.client() as client:
        found = client.post(f"/groups/{changed.name}/trace", json={"table": "t", "key": {"id": "1"}}).json()
        assert [change["operation"] for change in found["changes"]] == ["INSERT", "UPDATE"]
        assert client.post(f"/groups/{changed.name}/trace", json={"table": "t", "key": {}}).json()["where"] == "key"


def outcomes(answer: httpx.Response) -> list[tuple[str, list[str]]]:
    assert answer.status_code == 200, answer.text
    return [(each["outcome"], [after["after"]["v"] for after in each["after"]]) for each in answer.json()["changes"]]


def test_rules_are_tried_on_rows_of_the_stream(served: Served, changed: Group) -> None:
    with served.client() as client:
        answer = client.post("/rules/test", json={"rules": RULES, "group": changed.name, "table": "t", "sample": 10})
    assert outcomes(answer) == [("passed", ["g**d"]), ("dropped", []), ("passed", ["b****r"])]
    assert [step["outcome"] for step in answer.json()["changes"][1]["steps"]] == ["dropped"]
    assert "rules:4" in answer.json()["changes"][1]["steps"][0]["place"]


def test_rules_are_tried_on_lines_that_are_given(served: Served) -> None:
    line = {
        "operation": "INSERT",
        "schema": "public",
        "table": "t",
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "v": "abc"},
    }
    with served.client() as client:
        assert outcomes(client.post("/rules/test", json={"rules": RULES, "lines": [line]})) == [("passed", ["a*c"])]
        broken = client.post("/rules/test", json={"rules": "tables: {t: [{type: nonsense}]}", "lines": [line]})
        assert (broken.status_code, "rules:1" in broken.json()["detail"]) == (422, True)
        no_line = client.post("/rules/test", json={"rules": RULES, "lines": [{"operation": "INSERT"}]})
        assert (no_line.status_code, "not a change as a JSON line" in no_line.json()["detail"]) == (422, True)
