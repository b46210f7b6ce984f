"""Messages, traces and the rule bench, over the API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pgsluice.console.inspect.trial_steps import Trial
from pgsluice.rules.transformation_files import read_transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.errors import UsageError
from tests.changes_builder import insert, message, table
from tests.console.server.served import Served
from tests.replicated_group import Group
from tests.servers import NatsServer, PostgresServer

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


SLOW_ROWS = 5


@pytest.fixture(scope="module")
def changed(postgres: PostgresServer, nats_server: NatsServer) -> Iterator[Group]:
    """A group whose stream has rows of t that change, and of slow, on whose values a pattern of rules takes long."""
    source = postgres.create_database("source_of_inspected")
    try:
        source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE slow (id bigint PRIMARY KEY, v text)")
        group = Group("inspected", source, nats_server.settings())
        group.replicate()
        for change in (
            "INSERT INTO t VALUES (1, 'good'), (2, 'bad')",
            "UPDATE t SET v = 'better' WHERE id = 1",
            f"INSERT INTO slow SELECT n, repeat('x', 40) || '!' FROM generate_series(1, {SLOW_ROWS}) n",
        ):
            source.execute(change)
            group.replicate()
        yield group
    finally:
        source.drop()


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
        assert [message["sequence"] for message in following["messages"]] == [2, 3]
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


SLOW_RULES = """
tables:
  slow:
    - type: transform
      column: v
      parameters: {type: regex, pattern: '(?=x)^(x|xx)+$', replace: ""}
"""


def test_rules_that_take_long_hold_up_nobody_else(served: Served, changed: Group) -> None:
    bench = {"rules": SLOW_RULES, "group": changed.name, "table": "slow", "sample": SLOW_ROWS}
    traced = {"table": "slow", "key": {"v": "x" * 40 + "!"}, "rules": SLOW_RULES}
    rules_hash = read_transformation(SLOW_RULES, "").hash
    changed.with_broker(lambda stream, bucket: report(stream, bucket, rules_hash))
    with served.client() as client, ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(client.post, "/rules/test", json=bench),
            pool.submit(client.post, f"/groups/{changed.name}/trace", json=traced),
        ]
        slowest, all_begun = 0.0, time.monotonic()
        while not all(each.done() for each in asked):
            begun = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < (time.monotonic() - all_begun) / 2, "one of the two held it up"
        tried, found = (each.result() for each in asked)
    assert {outcome for outcome, _ in outcomes(tried)} == {"not processed"}
    assert [each["workers"][0]["outcome"] for each in found.json()["changes"]] == ["applied"] * SLOW_ROWS


async def report(stream: ChangeStream, bucket: StateBucket, rules: str) -> None:
    """Of a worker that has applied everything by those rules."""
    state = await stream.state()
    assert state is not None
    await bucket.put(worker_key("w"), WorkerReport(state.last_sequence, stream_created=state.created, rules=rules))


def test_a_bench_ends_in_time_whatever_it_is_given() -> None:
    of_one, rules = table("slow", "id bigint", "v text"), read_transformation(SLOW_RULES, "")
    changes = [message(1, insert(of_one, b"1", b"x" * 40 + b"!")) for _ in range(50)]
    with pytest.raises(UsageError, match=r"took more than 0\.3 s for \d of 50 changes"):
        Trial(rules).of_all(changes, 0.3)
    with pytest.raises(UsageError, match="time_limit_ms '100000000' is not a whole number from 1 to 60000"):
        read_transformation(SLOW_RULES.replace('replace: ""', 'replace: "", time_limit_ms: 100000000'), "")
