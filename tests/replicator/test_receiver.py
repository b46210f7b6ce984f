"""How the receive loop waits."""

from __future__ import annotations

import pytest

from pgsluice.replicator import receiver
from tests.replicated_group import Group


def test_large_changes_are_not_left_waiting_while_the_loop_naps(replication: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "NAP_S", 3600)  # a single nap is one too many
    replication.replicate()
    replication.source.execute(
        f"INSERT INTO t SELECT n, repeat('x', {4 * receiver.SMALL_CHANGE_BYTES}) FROM generate_series(1, 2000) n"
    )
    replication.replicate()
    assert replication.audit().rows == {"public.t insert": 2000}
