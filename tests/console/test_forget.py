"""``pgsluice forget``: a worker that does not come back no longer holds messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from nats.aio.client import Client

from pgsluice.console import forget as forget_module
from pgsluice.console import program
from pgsluice.console.forget import run
from pgsluice.replicator.retention import copied_by_all
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.halt import HALT_KEY, note_halt
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import (
    PositionRecord,
    ReadyRecord,
    WorkerReport,
    lease_key,
    position_key,
    ready_key,
    worker_key,
)
from pgsluice.shared.config.settings import GroupSettings, LogSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import HistoryError, TerminalError, UsageError
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.worker.positions.lease import Lease
from tests.servers import NatsServer

STREAM = StreamSettings(replicas=1, placement_tags=(), max_bytes=1 << 20, compression="none", retention_s=0)

T = TypeVar("T")


@pytest.fixture
def settings(nats_server: NatsServer, group: str) -> GroupSettings:
    """A group whose worker ``gone`` applied nothing of three messages, and whose worker ``other`` applied all."""
    settings = GroupSettings(group, LogSettings("INFO", "text"), nats_server.settings())

    async def make(client: Client) -> None:
        names = GroupNames(group)
        stream, bucket = ChangeStream(client, names), StateBucket(client, names)
        await stream.ensure(STREAM)
        await bucket.ensure(STREAM)
        for worker, sequence in (("gone", 0), ("other", 3)):
            await bucket.put(worker_key(worker), WorkerReport(sequence, sequence))
        await bucket.put(ready_key("gone"), ReadyRecord())
        await bucket.put(position_key("gone"), PositionRecord(0, "0/0", 0, ""))
        await bucket.put(position_key("gone.replay"), PositionRecord(0, "0/0", 0, ""))

    asked(settings, make)
    return settings


def asked(settings: GroupSettings, ask: Callable[[Client], Awaitable[T]]) -> T:
    async def call() -> T:
        async with connected(settings.nats, "test") as client:
            return await ask(client)

    return asyncio.run(call())


def keys(settings: GroupSettings) -> list[str]:
    async def ask(client: Client) -> list[str]:
        bucket = StateBucket(client, GroupNames(settings.group))
        return [key for key in await bucket.keys() if await bucket.get(key) is not None]

    return asked(settings, ask)


def test_a_forgotten_worker_leaves_no_record_and_the_others_stay(
    settings: GroupSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        run(settings, "gone", dead_letters=False)
    assert keys(settings) == [worker_key("other")]
    assert "worker is forgotten" in caplog.text

    async def applied_by_all(client: Client) -> int:
        return await copied_by_all(StateBucket(client, GroupNames(settings.group)))

    assert asked(settings, applied_by_all) == 3


def test_a_worker_that_runs_is_not_forgotten(settings: GroupSettings) -> None:
    lost: list[BaseException] = []

    async def hold(client: Client) -> None:
        lease = Lease(StateBucket(client, GroupNames(settings.group)), "gone")
        await lease.acquire(lost.append)
        with pytest.raises(TerminalError, match=r"worker 'gone' runs on .*stop it first"):
            await asyncio.to_thread(run, settings, "gone", dead_letters=False)
        await lease.release()

    asked(settings, hold)
    assert worker_key("gone") in keys(settings)


def test_the_lease_of_a_worker_that_was_killed_does_not_last(settings: GroupSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave_lease(client: Client) -> None:
        await StateBucket(client, GroupNames(settings.group)).put(lease_key("gone"), {"host": "elsewhere", "pid": 7})

    asked(settings, leave_lease)
    with pytest.raises(TerminalError, match="elsewhere, process 7"):
        run(settings, "gone", dead_letters=False)
    monkeypatch.setattr(forget_module, "LEASE_DURATION_S", 0.0)
    run(settings, "gone", dead_letters=False)
    assert keys(settings) == [worker_key("other")]


def test_unknown_workers_and_groups_are_refused_with_the_ones_there_are(settings: GroupSettings) -> None:
    with pytest.raises(UsageError, match=r"no worker 'gnoe'.*gone, other"):
        run(settings, "gnoe", dead_letters=False)
    with pytest.raises(UsageError, match=f"never been started.*{settings.group}"):
        run(GroupSettings("mistyped", settings.log, settings.nats), "gone", dead_letters=False)


@pytest.mark.parametrize("dead_letters", [False, True])
def test_dead_letters_are_kept_unless_they_are_to_go(
    settings: GroupSettings, caplog: pytest.LogCaptureFixture, dead_letters: bool
) -> None:
    async def publish(client: Client) -> None:
        names = GroupNames(settings.group)
        stream = DeadLetterStream(client, names)
        await stream.ensure_like(names.changes_stream)
        await stream.publish(letter("gone"))
        await stream.publish(letter("other"))

    asked(settings, publish)
    with caplog.at_level(logging.INFO):
        run(settings, "gone", dead_letters=dead_letters)
    left = asked(settings, lambda client: DeadLetterStream(client, GroupNames(settings.group)).letters())
    assert [stored.letter.worker for stored in left] == (["other"] if dead_letters else ["gone", "other"])
    assert f"its dead letters are {'removed' if dead_letters else 'kept'}" in caplog.text


def letter(worker: str) -> DeadLetter:
    return DeadLetter(worker, Position(LSN(1), 1), "public.t", "refused", "2026-01-01T00:00:00Z", 1, "", 1, b"{}")


def test_the_command_asks_before(settings: GroupSettings) -> None:
    arguments = ["forget", "--group", settings.group, "--nats-url", settings.nats.url, "--worker", "gone"]
    assert program.run(arguments) == 2
    assert worker_key("gone") in keys(settings)
    assert program.run([*arguments, "--yes"]) == 0
    assert worker_key("gone") not in keys(settings)


def test_a_halt_is_lifted_and_without_one_that_is_said(settings: GroupSettings) -> None:
    async def halt(client: Client) -> None:
        await note_halt(StateBucket(client, GroupNames(settings.group)), HistoryError("another history", "look at it"))

    arguments = ["forget", "--group", settings.group, "--nats-url", settings.nats.url, "--yes"]
    assert program.run([*arguments, "--halt"]) == 2
    asked(settings, halt)
    assert HALT_KEY in keys(settings)
    assert program.run([*arguments, "--halt", "--worker", "gone"]) == 2
    assert program.run([*arguments, "--halt"]) == 0
    assert HALT_KEY not in keys(settings)
