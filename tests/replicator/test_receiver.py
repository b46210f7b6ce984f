"""How the receive loop waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.replicator import receiver
from pgsluice.replicator.replicator import run
from tests.replicated_group import Group
from tests.servers import NatsServer, PostgresServer
from tests.servers.child import PrivateDirectory, unprivileged_user


def test_large_changes_are_not_left_waiting_while_the_loop_naps(replication: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "NAP_S", 3600)  # a single nap is one too many
    replication.replicate()
    replication.source.execute(
        f"INSERT INTO t SELECT n, repeat('x', {4 * receiver.SMALL_CHANGE_BYTES}) FROM generate_series(1, 2000) n"
    )
    replication.replicate()
    assert replication.audit().rows == {"public.t insert": 2000}


def test_what_a_unix_socket_brings_is_not_left_waiting_while_the_loop_naps(
    group: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has room for a few hundred changes, which would be all that arrive in the time of a nap."""
    monkeypatch.setattr(receiver, "NAP_S", 3600)
    monkeypatch.setattr(receiver, "BUSY_WAIT_S", 3600)
    directory = PrivateDirectory("socket", unprivileged_user())
    try:
        with PostgresServer({"unix_socket_directories": str(directory.path)}) as server:
            source = server.create_database("source")
            source.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
            replication = Group(group, source, nats_server.settings())
            local = replace(source.settings, host=str(directory.path))
            run(replace(replication.settings(), source=local))
            for _ in range(3):
                source.execute("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 10000) n; TRUNCATE t")
            run(replace(replication.settings(), source=local))
            assert replication.audit().rows == {"public.t insert": 30_000, "public.t truncate": 3}
    finally:
        directory.remove()
