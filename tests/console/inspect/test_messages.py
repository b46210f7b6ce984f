"""What ``pgsluice messages`` shows of a stream, from wherever one looks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pgsluice.console.program import run
from pgsluice.shared.wire.names import GroupNames
from tests.replicated_group import Group
from tests.servers import NatsServer, PostgresServer


def shown(group: Group, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["messages", "--group", group.name, "--nats-url", group.nats.url, "--json", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def ids(messages: list[dict[str, Any]]) -> list[int]:
    return [change["after"]["id"] for message in messages for change in message["changes"]]


@pytest.fixture(scope="module")
def three(postgres: PostgresServer, nats_server: NatsServer) -> Iterator[Group]:
    """Three messages: of two tables, of one, and of the other. Nobody adds one, or takes one away."""
    source = postgres.create_database("source_of_three_messages")
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY, note text)")
    group = Group("three", source, nats_server.settings())
    group.replicate()
    for statement in (
        "INSERT INTO t VALUES (1, 'v'), (2, 'v'); INSERT INTO other VALUES (3, 'w')",
        "INSERT INTO t VALUES (4, 'v')",
        "INSERT INTO other SELECT 5, repeat('long', 1000)",
    ):
        source.execute(statement)
        group.replicate(compression="zstd" if "long" in statement else "none")
    yield group
    source.drop()


def test_messages_are_shown_as_they_were_published(three: Group, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = shown(three, capsys, "--from", "1")
    assert [first["sequence"], second["sequence"], third["sequence"]] == [1, 2, 3]
    assert {each["table"]: each["changes"] for each in first["tables"]} == {"public.t": 2, "public.other": 1}
    assert ids([first, second, third]) == [1, 2, 3, 4, 5]
    assert [first["compressed"], third["compressed"]] == [False, True]
    assert first["first"] == first["changes"][0]["position"]
    assert first["last"] == first["changes"][-1]["position"]


def test_one_begins_at_a_sequence_at_a_time_or_with_the_newest(three: Group, capsys: pytest.CaptureFixture[str]) -> None:
    second = shown(three, capsys, "--from", "2")
    assert ids(second) == [4, 5]
    assert ids(shown(three, capsys, "--from", second[0]["stored_at"])) == [4, 5]
    assert ids(shown(three, capsys, "--from", "2000-01-01")) == [1, 2, 3, 4, 5]
    assert shown(three, capsys, "--from", "2999-01-01T00:00:00+00:00") == []
    assert ids(shown(three, capsys, "--limit", "1")) == [5]


def test_one_begins_at_the_position_of_a_change(three: Group, capsys: pytest.CaptureFixture[str]) -> None:
    positions = [change["position"] for message in shown(three, capsys, "--from", "1") for change in message["changes"]]
    assert [ids(shown(three, capsys, "--from", each, "--limit", "1")) for each in positions] == [[1], [2], [3], [4], [5]]
    assert ids(shown(three, capsys, "--from", positions[1])) == [2, 3, 4, 5]


def test_the_newest_are_those_at_the_end_however_many_changes_they_hold(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    replication.replicate()
    for statement in (
        "INSERT INTO other VALUES (1)",
        "INSERT INTO t SELECT n FROM generate_series(100, 199) n",
        "INSERT INTO t VALUES (200), (201)",
        "INSERT INTO t VALUES (202)",
    ):
        replication.source.execute(statement)
        replication.replicate()
    assert ids(shown(replication, capsys, "--limit", "10")) == [200, 201, 202]
    assert ids(shown(replication, capsys, "--limit", "2")) == [202]
    assert ids(shown(replication, capsys, "--limit", "1", "--table", "other")) == [1]


def test_tables_are_chosen_and_limits_kept(three: Group, capsys: pytest.CaptureFixture[str]) -> None:
    assert ids(shown(three, capsys, "--from", "1", "--table", "other")) == [3, 5]
    assert ids(shown(three, capsys, "--from", "1", "--table", "public.t", "--limit", "2")) == [1, 2]
    [first] = shown(three, capsys, "--from", "1", "--limit", "2")
    assert (ids([first]), first["left_out"]) == ([1, 2], 1)
    assert shown(three, capsys, "--from", "1", "--table", "nothing") == []


def test_a_body_in_chunks_is_one_message(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t SELECT 1, string_agg(md5(i::text), '') FROM generate_series(1, 80000) i")
    replication.replicate()
    [message] = shown(replication, capsys, "--from", "1")
    assert message["chunks"] > 1
    assert message["sequence"] == message["chunks"]
    assert len(message["changes"][0]["after"]["v"]) == 80000 * 32
    assert shown(replication, capsys, "--from", "2") == []


def test_messages_that_retention_removed_are_passed_over(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    for row in range(3):
        replication.replicate()
        replication.source.execute(f"INSERT INTO t VALUES ({row}, 'v')")
    replication.with_broker(lambda stream, _: stream.purge_up_to(1))
    assert ids(shown(replication, capsys, "--from", "1")) == [1]
    assert ids(shown(replication, capsys, "--from", "2000-01-01")) == [1]


def test_looking_leaves_nothing_in_the_broker(three: Group, capsys: pytest.CaptureFixture[str]) -> None:
    async def consumers(stream: Any, _: Any) -> int:
        info = await stream._client.jetstream().stream_info(GroupNames(three.name).changes_stream)
        return int(info.state.consumer_count)

    shown(three, capsys, "--from", "1")
    assert three.with_broker(consumers) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "yesterday"], "no sequence, no time and no position"),
        (["--from", "0001-01-01T00:00:00+14:00"], "no sequence, no time and no position"),
        (["--table", "a.b.c"], "is not a table"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(
    three: Group, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert run(["messages", "--group", three.name, "--nats-url", three.nats.url, *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_group_without_a_stream_is_said(nats_server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["messages", "--group", "nobody", "--nats-url", nats_server.url]) == 2
    assert "has no stream of changes" in capsys.readouterr().err
