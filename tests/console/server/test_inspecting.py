"""Messages, traces and the rule bench, over the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import httpx
import orjson
import pytest

from pgsluice.console.inspect import trial_process
from pgsluice.console.inspect.rules_trial import BenchTrial
from pgsluice.console.inspect.trial_steps import Trial
from pgsluice.rules.transformation_files import read_transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.errors import UsageError
from pgsluice.testing.changes_builder import insert, message, table
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
        for answer in (
            blind.get(f"{path}/messages"),
            blind.post(f"{path}/trace", json={"table": "t", "key": {"id": "1"}}),
            blind.post("/rules/test", json={"rules": RULES, "group": changed.name, "table": "t"}),
        ):
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
    with served.client() as client:
        assert outcomes(client.post("/rules/test", json={"rules": RULES, "lines": [LINE]})) == [("passed", ["*"])]
        broken = client.post("/rules/test", json={"rules": "tables: {t: [{type: nonsense}]}", "lines": [LINE]})
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
        while wait(asked, timeout=0.02).not_done:
            begun = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < (time.monotonic() - all_begun) / 2, "one of the two held it up"
        tried, found = (each.result() for each in asked)
    assert {outcome for outcome, _ in outcomes(tried)} == {"not processed"}
    assert [each["workers"][0]["outcome"] for each in found.json()["changes"]] == ["applied"] * SLOW_ROWS


LINE = {"operation": "INSERT", "schema": "public", "table": "t", "key": {"id": 1}, "before": None, "after": {"id": 1, "v": "a"}}
LARGE_WHEN_COMPILED = "(?=a)(?:(?:a{1000}){1000}){1000}"


def one_rule(parameters: str) -> str:
    return f"tables: {{t: [{{type: transform, column: v, parameters: {parameters}}}]}}"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (one_rule(f"{{type: regex, pattern: '{LARGE_WHEN_COMPILED}', replace: x}}"), "the trial of the rules takes more than"),
        (one_rule(f"{{type: mask, mask_char: '{'*' * 20_000}'}}"), "mask_char has 20000 characters"),
        (f"tables: {{t: [{'{type: transform, column: v, parameters: {type: mask}},' * 8000}]}}", "more than 65536 characters"),
        (f"tables: {{t: [{'{type: transform, column: v, parameters: {tipe: 1}},' * 1000}]}}", "has 1000 problems"),
        (one_rule("{type: regex, pattern: '" + "(" * 30_000 + "', replace: x}"), "is not a regular expression"),
    ],
    ids=["large when compiled", "long mask", "long text", "many problems", "deep pattern"],
)
def test_rules_that_take_too_much_are_refused_and_nobody_else_waits(served: Served, rules: str, said: str) -> None:
    with served.client() as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/rules/test", json={"rules": rules, "lines": [LINE]})
        slowest = 0.0
        while not wait([asked], timeout=0.02).done:
            begun = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - begun)
        answer = asked.result()
        assert (answer.status_code, said in answer.json()["detail"]) == (422, True), answer.text[:500]
        assert slowest < 10
        assert outcomes(client.post("/rules/test", json={"rules": RULES, "lines": [LINE]})) == [("passed", ["*"])]


def test_a_trace_with_rules_that_take_too_much_is_refused(served: Served, changed: Group) -> None:
    rules = one_rule(f"{{type: regex, pattern: '{LARGE_WHEN_COMPILED}', replace: x}}")
    with served.client() as client:
        path = f"/groups/{changed.name}/trace"
        answer = client.post(path, json={"table": "t", "key": {"id": "1"}, "rules": rules})
        assert (answer.status_code, "the trial of the rules takes more than" in answer.json()["detail"]) == (422, True), (
            answer.text
        )
        assert client.post(path, json={"table": "t", "key": {"id": "1"}, "rules": RULES}).status_code == 200


def test_a_trial_that_has_no_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_process, "LONGEST_S", 3.0)
    endless = one_rule("{type: regex, pattern: '(?=a)^(a|aa)+$', replace: x, time_limit_ms: 60000}")
    line = orjson.dumps({**LINE, "after": {"id": 1, "v": "a" * 60 + "!"}})
    with pytest.raises(UsageError, match="the trial of the rules takes more than 3 s"):
        asyncio.run(trial_process.run_trial(BenchTrial(endless, "", (), (line,))))


def test_a_trial_is_not_given_the_server_s_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_process, "_COMMAND", ("/bin/sh", "-c", "env | grep -c PASSWORD; exit 0"))
    monkeypatch.setenv("PGSLUICE_PASSWORD", "hidden")
    assert asyncio.run(trial_process.run_trial(BenchTrial("", "", (), ()))) == b"0\n"


def test_rules_are_tried_for_one_after_the_other(served: Served, changed: Group) -> None:
    slow = {"rules": SLOW_RULES, "group": changed.name, "table": "slow", "sample": SLOW_ROWS}
    quick = {"rules": RULES, "group": changed.name, "table": "t"}
    with served.client() as client, ThreadPoolExecutor(1) as pool:
        trying, answers = pool.submit(client.post, "/rules/test", json=slow), 0
        while not trying.done():
            assert client.post("/rules/test", json=quick).status_code == 200
            answers += 1
    assert trying.result().status_code == 200
    assert answers <= 3, "those that came before the slow one, and the one that waited for it"


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
