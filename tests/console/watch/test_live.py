"""``pgsluice status --watch`` on a real terminal, and without one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import WorkerReport, worker_key
from tests.replicated_group import Group
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.terminal import Terminal
from tests.waiting import wait_until

STARTED = "2026-01-31T12:00:00Z"
ENTERS, LEAVES = b"\x1b[?1049h", b"\x1b[?1049l"
"""The screen that a full-screen program has to itself."""


@pytest.fixture
def config(replication: Group) -> dict[str, Any]:
    source = replication.source.settings
    replication.replicate()
    return {
        "group": replication.name,
        "nats-url": replication.nats.url,
        "host": source.host,
        "port": source.port,
        "dbname": source.dbname,
        "user": source.user,
    }


@pytest.fixture
def mortal_nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def report(replication: Group, worker: str, changes: int) -> None:
    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        content = WorkerReport(
            1, commit_lsn="0/1", stream_created=state.created, changes=changes, started_at="2026-01-31T12:00:00Z"
        )
        await bucket.put(worker_key(worker), content)

    replication.with_broker(register)


def test_a_screen_shows_rates_and_ends_at_ctrl_c_with_0_and_the_terminal_as_it_was(
    replication: Group, config: dict[str, Any]
) -> None:
    report(replication, "lake", 0)
    with Terminal("status", "--watch", "--every", "0.2s", config=config) as terminal:
        terminal.wait_for("lake")
        assert f"group {replication.name}" in terminal.lines()[0]
        assert not terminal.echoes
        report(replication, "lake", 50_000)
        wait_until(lambda: re.search(r"lake .* \d+,\d{3} *$", terminal.text(), re.MULTILINE), what="a rate")
        terminal.type("\x03")
        assert terminal.wait() == 0
        wait_until(lambda: LEAVES in terminal.written, what="the end of the screen")
        assert terminal.written.count(ENTERS) == terminal.written.count(LEAVES) == 1
        assert terminal.echoes


def test_a_window_of_another_size_is_filled_anew_until_a_sigterm(config: dict[str, Any]) -> None:
    with Terminal("status", "--watch", "--every", "60s", config=config, columns=120, lines=40) as terminal:
        terminal.wait_for("replicator")
        for columns, lines in ((80, 24), (40, 10)):
            terminal.resize(columns, lines)
            wait_until(lambda: terminal.lines()[0].endswith(("UTC", "ago")), what="the time at the new right edge")
        terminal.send(signal.SIGTERM)
        assert terminal.wait() == 0
        assert terminal.echoes


def test_nothing_is_erased_between_two_pictures_until_a_key_ends_the_screen(config: dict[str, Any]) -> None:
    """A screen that is erased before it is drawn flickers."""
    with Terminal("status", "--watch", "--every", "0.1s", config=config) as terminal:
        terminal.wait_for("replicator")
        drawn = len(terminal.written)
        wait_until(lambda: len(terminal.written) > drawn + 10_000, what="some more pictures")
        assert b"\x1b[2J" not in terminal.written[drawn:]
        assert b"\x1b[J" not in terminal.written[drawn:]
        terminal.type("q")
        assert terminal.wait() == 0
        assert terminal.echoes


def test_a_broker_that_is_lost_is_said_and_the_screen_goes_on(
    group: str, source_database: Database, mortal_nats: NatsServer
) -> None:
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    replication = Group(group, source_database, mortal_nats.settings())
    replication.replicate()
    config = {"group": group, "nats-url": mortal_nats.url}
    with Terminal("status", "--watch", "--every", "0.2s", config=config) as terminal:
        terminal.wait_for("replicator")
        mortal_nats.kill()
        terminal.wait_for("does not answer")
        assert "replicator" in terminal.text()
        mortal_nats.start()
        wait_until(lambda: "does not answer" not in terminal.text(), what="a screen without a problem", deadline_s=60.0)
        terminal.wait_for("replicator")


def test_without_a_terminal_the_lines_of_status_are_written_again_and_again(config: dict[str, Any]) -> None:
    with PgsluiceProcess("status", "--watch", "--every", "0.1s", config=config) as process:
        wait_until(lambda: process.stdout().count(f"group        {config['group']}") >= 2, what="two looks")
        process.terminate()
        assert process.wait() == 0
        assert "\x1b" not in process.stdout()
