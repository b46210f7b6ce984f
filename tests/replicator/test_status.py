"""What ``pgsluice status`` shows, whatever is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from replicator.status import format_bytes, run
from shared.errors import TransientError
from shared.jetstream import ChangeStream
from shared.settings import PostgresSettings, StatusSettings
from shared.state import StateBucket, worker_key
from tests.replicator.conftest import Group
from tests.servers.child import free_port


def settings(replication: Group, source: PostgresSettings | None) -> StatusSettings:
    return StatusSettings(replication.name, source, replication.nats, replication.settings().log)


def status(replication: Group, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(settings(replication, replication.source.settings), as_json=True)
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_a_group_that_was_never_started_shows_nothing(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(replication, capsys)
    assert (found["bound_to"], found["slot"], found["stream"], found["workers"]) == (None, None, None, [])
    run(settings(replication, None), as_json=False)
    assert "never been started" in capsys.readouterr().out


def test_slot_stream_and_workers_are_shown_with_their_lag(replication: Group, capsys: pytest.CaptureFixture[str]) -> None:
    replication.replicate()
    for number in range(2):
        replication.source.execute(f"INSERT INTO t VALUES ({number}, 'v')")
        replication.replicate()

    async def register(stream: ChangeStream, bucket: StateBucket) -> None:
        state = await stream.state()
        assert state is not None
        record = {"commit_lsn": "0/1", "committed_at": None, "updated_at": "now", "host": "here", "pid": 1}
        await bucket.put(worker_key("w"), record | {"sequence": 1, "stream_created": state.created})

    replication.with_broker(register)
    found = status(replication, capsys)
    assert found["slot"]["confirmed_flush"] == replication.confirmed_lsn()
    assert (found["slot"]["lost"], found["slot"]["lag_bytes"] >= 0) == ("", True)
    assert found["stream"]["last_sequence"] == 2
    [worker] = found["workers"]
    assert (worker["lag_messages"], worker["lag_bytes"]) == (1, len(replication.last_message().data))
    assert 0 < worker["lag_s"] < 60
    run(settings(replication, replication.source.settings), as_json=False)
    assert "w: sequence 1, commit 0/1, 1 messages" in capsys.readouterr().out


def test_a_source_that_does_not_answer_is_said_and_the_rest_is_shown(
    replication: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    replication.replicate()
    run(settings(replication, replace(replication.source.settings, port=free_port())), as_json=False)
    shown = capsys.readouterr().out
    assert "slot         not known: PostgreSQL at 127.0.0.1" in shown
    assert "stream       0 messages" in shown


def test_a_broker_that_does_not_answer_is_a_transient_error(replication: Group) -> None:
    nowhere = replace(replication.nats, url=f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(TransientError, match="does not answer"):
        run(replace(settings(replication, None), nats=nowhere), as_json=False)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 << 30, "10.0 GiB"), (1 << 42, "4.0 TiB")]
)
def test_sizes_are_shown_in_a_unit_that_fits(count: int, text: str) -> None:
    assert format_bytes(count) == text
