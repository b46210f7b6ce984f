"""``pgsluice ddl log`` and ``ddl accept``: what people read of definitions, and say about them, while nothing runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from pgsluice.console.program import run
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.definition_log import (
    DefinitionLog,
    DefinitionOutcome,
    LoggedDefinition,
    NotedOutcome,
    store_log,
    store_outcomes,
)
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from pgsluice.shared.definitions.definition_decisions import HeldColumn, accepted_by, store_held
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

T = TypeVar("T")
AT = "2026-01-31T09:15:00+00:00"


def at(number: int) -> Position:
    return Position(LSN(number), 1)


def logged(number: int, name: str, *changes: str) -> LoggedDefinition:
    return LoggedDefinition(at(number), AT if number > 1 else "", "ALTER TABLE", 16400, name, changes)


LOG = DefinitionLog(
    [
        logged(1, "", "the source could not describe its effect (SQLSTATE XX000)"),
        logged(2, "public.orders", "added column note text", "dropped column old"),
        logged(3, "shop.orders", "rewrote the table (a type)"),
        logged(4, "shop.odd.name", "renamed column a to b"),
    ]
)
OUTCOMES = {
    at(1): NotedOutcome((DefinitionOutcome.ACCEPTED,), AT),
    at(2): NotedOutcome((DefinitionOutcome.APPLIED, DefinitionOutcome.KEPT), AT),
    at(3): NotedOutcome((DefinitionOutcome.STOPPED,), AT),
}


class Bucket:
    """That of a group of which nothing runs."""

    def __init__(self, nats: NatsServer, group: str) -> None:
        self.flags = ["--group", group, "--nats-url", nats.url]
        self._nats = nats
        self._group = group
        ensure_bucket(nats.settings(), group)

    def ask(self, question: Callable[[StateBucket], Coroutine[Any, Any, T]]) -> T:
        async def answer() -> T:
            async with connected(self._nats.settings(), "test") as client:
                return await question(StateBucket(client, GroupNames(self._group)))

        return asyncio.run(answer())


@pytest.fixture
def bucket(nats_server: NatsServer, group: str) -> Bucket:
    made = Bucket(nats_server, group)

    async def fill(bucket: StateBucket) -> None:
        await store_log(bucket, LOG)
        await bucket.put(worker_key("postgres"), WorkerReport(1, commit_lsn="0/2"))
        await bucket.put(worker_key("late"), WorkerReport(1, commit_lsn="0/1"))
        await store_outcomes(bucket, "postgres", OUTCOMES)
        await store_held(bucket, "late", [HeldColumn(16400, 3, "public.orders", "note", "0/2:1")])

    made.ask(fill)
    return made


def listed(bucket: Bucket, capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    assert run(["ddl", "log", "--json", *flags, *bucket.flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_definition_is_told_with_what_each_worker_did(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(bucket, capsys)
    assert [each["position"] for each in found] == ["0/1:1", "0/2:1", "0/3:1", "0/4:1"]
    assert found[1] == {
        "position": "0/2:1",
        "committed_at": AT,
        "tag": "ALTER TABLE",
        "table": "public.orders",
        "oid": 16400,
        "changes": ["added column note text", "dropped column old"],
        "workers": {
            "late": {"outcomes": ["not reached yet"], "at": None},
            "postgres": {"outcomes": ["applied", "kept"], "at": AT},
        },
    }
    assert (found[0]["table"], found[0]["committed_at"]) == (None, None)
    assert found[0]["workers"]["late"] == {"outcomes": ["passed"], "at": None}
    assert run(["ddl", "log", *bucket.flags]) == 0
    headings, *lines = capsys.readouterr().out.splitlines()
    assert headings.split() == ["POSITION", "COMMITTED", "TABLE", "WORKERS", "CHANGES"]
    assert "late: not reached yet; postgres: applied, kept" in lines[1]
    assert lines[1].endswith("added column note text, dropped column old")
    assert lines[0].split()[1:3] == ["-", "-"]


@pytest.mark.parametrize(("oid", "word"), [(16400, "not reached yet"), (7, "passed")])
def test_a_table_that_is_behind_the_others_has_not_reached_what_they_passed(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], oid: int, word: str
) -> None:
    behind = WorkerReport(1, commit_lsn="0/4", catching_up=(oid,), catch_up_sequence=1, catch_up_lsn="0/1")

    async def report(bucket: StateBucket) -> None:
        await bucket.put(worker_key("late"), behind)

    bucket.ask(report)
    assert listed(bucket, capsys)[1]["workers"]["late"]["outcomes"] == [word]


@pytest.mark.parametrize(
    ("flags", "positions"),
    [
        (["--table", "orders"], ["0/2:1", "0/3:1"]),
        (["--table", "shop.*"], ["0/3:1", "0/4:1"]),
        (["--table", 'shop."odd.name"'], ["0/4:1"]),
        (["--table", "other"], []),
        (["--limit", "2"], ["0/3:1", "0/4:1"]),
        (["--limit", "0"], ["0/1:1", "0/2:1", "0/3:1", "0/4:1"]),
        (["--table", "orders", "--limit", "1"], ["0/3:1"]),
    ],
)
def test_tables_and_their_number_are_chosen(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], flags: list[str], positions: list[str]
) -> None:
    assert [each["position"] for each in listed(bucket, capsys, *flags)] == positions


@pytest.mark.parametrize(
    ("named", "positions"),
    [(["0/4:1"], {at(4)}), (["shop.orders"], {at(3)}), (["public.orders"], {at(2)}), (["orders"], {at(2), at(3)})],
)
def test_a_person_accepts_a_position_or_what_waits_of_a_table(bucket: Bucket, named: list[str], positions: set[Position]) -> None:
    assert run(["ddl", "accept", *named, *bucket.flags]) == 0
    assert bucket.ask(lambda asked: accepted_by(asked, "postgres")) == positions


def test_what_is_accepted_for_one_worker_is_not_for_another(bucket: Bucket) -> None:
    assert run(["ddl", "accept", "0/3:1", "--worker", "postgres", *bucket.flags]) == 0
    assert bucket.ask(lambda asked: accepted_by(asked, "postgres")) == {at(3)}
    assert bucket.ask(lambda asked: accepted_by(asked, "late")) == frozenset()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["accept", "0/9:1"], "there is no definition at 0/9:1: see 'pgsluice ddl log'"),
        (["accept", "other"], "no worker waits for a decision about table 'other'"),
        (["accept", "shop.*"], "'shop.*' may be several tables"),
        (["accept", "a.b.c"], "'a.b.c' is not a table"),
        (["accept", "0/3:1", "--worker", "absent"], "has no worker 'absent': its workers: late, postgres"),
        (["accept", "shop.orders", "--worker", "late"], "no worker waits for a decision"),
        (["log", "--table", "a.b.c"], "'a.b.c' is not a table"),
    ],
)
def test_what_names_nothing_is_refused(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["ddl", *arguments, *bucket.flags]) == 2
    assert said in capsys.readouterr().err


def test_a_group_that_was_never_started_is_said(nats_server: NatsServer, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ddl", "log", "--group", group, "--nats-url", nats_server.url]) == 2
    assert "has never been started on this NATS" in capsys.readouterr().err


def test_a_worker_that_is_forgotten_leaves_nothing_of_what_it_noted(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["forget", "--worker", "late", "--yes", *bucket.flags]) == 0
    capsys.readouterr()
    assert [*listed(bucket, capsys)[0]["workers"]] == ["postgres"]
    kept = bucket.ask(lambda asked: asked.keys())
    assert bucket.ask(lambda asked: asked.get("held.late")) is None, kept
