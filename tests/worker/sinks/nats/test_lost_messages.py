"""NATS lost its newest messages, as in a power cut or after a restore, while the worker lived on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pgsluice.shared.errors import SinkBehindError, TransientError
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.sinks.nats import sink as nats_sink
from pgsluice.worker.sinks.nats.sink import NatsSink
from pgsluice.worker.sinks.sink import Applied
from tests.servers import NatsServer
from tests.waiting import wait_until
from tests.worker.sinks.nats.test_contract import GroupDestination, JsonDestination, tell_group


def applied(sink: NatsSink, sequence: int) -> Applied:
    """As a worker does it: again, as long as that may help."""

    def attempt() -> Applied | None:
        try:
            return apply(sink, batch([sequence]))
        except TransientError:
            return None

    return wait_until(attempt, deadline_s=60, what=f"batch {sequence}", interval_s=0.2)


@pytest.mark.parametrize("kind", [JsonDestination, pytest.param(GroupDestination, marks=pytest.mark.long)])
def test_a_worker_that_read_on_from_what_is_lost_ends_and_the_next_one_publishes_it_again(
    kind: Callable[..., JsonDestination | GroupDestination], group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_sink, "BEHIND_PATIENCE_S", 0.5)
    with NatsServer() as server:
        tell_group(server.settings(), group)
        destination = kind(server.settings(), group)
        sink = destination.new_sink()
        sink.open()
        apply(sink, batch([1]))
        server.stop()
        shutil.copytree(server.store, tmp_path / "earlier")
        server.start()
        applied(sink, 2)
        applied(sink, 3)
        server.kill()
        shutil.rmtree(server.store)
        shutil.copytree(tmp_path / "earlier", server.store)
        server.start()
        with pytest.raises(SinkBehindError, match="before the last one of this worker"):
            applied(sink, 4)
        sink.close()
        successor = destination.new_sink()
        assert successor.open() == position(1)
        apply(successor, batch([2, 3, 4]))
        successor.close()
        assert destination.delivered() == events(4)
