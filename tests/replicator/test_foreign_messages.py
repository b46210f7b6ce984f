"""Every role of the source may emit logical messages, of any prefix and of up to a GiB. None of them holds a replicator up, fills
its memory, or is stored one by one."""

from __future__ import annotations

import re
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsluice.shared.broker.definition_log import load_log
from tests.end_to_end.group_under_test import configuration
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess
from tests.waiting import wait_until

MIB = 1 << 20


@pytest.fixture
def stranger(replication: Group) -> Iterator[str]:
    """A role without any right."""
    name = f"stranger_{uuid.uuid4().hex[:8]}"
    replication.source.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    replication.source.execute(f"DROP ROLE {name}")


def emit(replication: Group, role: str, prefix: str, content: str, *, count: int = 1, is_transactional: bool = True) -> None:
    source = replication.source
    with psycopg.connect(source.server.dsn(source.dbname), user=role, autocommit=True) as connection:
        connection.execute(
            f"SELECT pg_logical_emit_message(%s, %s, {content}) FROM generate_series(1, %s)", [is_transactional, prefix, count]
        )


def peak_bytes(pid: int) -> int:
    """The most memory that was ever resident."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def has_rows(replication: Group, count: int) -> bool:
    return replication.audit().rows == {"public.t insert": count}


def follow(replication: Group, nats_server: NatsServer) -> PgsluiceProcess:
    keys = configuration(replication.name, replication.source, None, nats_server, **{"track-ddl": True, "tables": "t"})
    return PgsluiceProcess("replicator", config=keys)


def test_long_messages_of_strangers_take_no_memory(replication: Group, nats_server: NatsServer, stranger: str) -> None:
    with follow(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        replication.source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: has_rows(replication, 1), what="the first row")
        before = peak_bytes(replicator.pid)
        for prefix in ("x", "pgsluice", replication.names.definitions_prefix, "x" * 200_000):
            emit(replication, stranger, prefix, f"repeat('x', {64 * MIB})")
        emit(replication, stranger, "x", f"repeat('x', {64 * MIB})", is_transactional=False)
        replication.source.execute("INSERT INTO t VALUES (2, 'b')")
        wait_until(lambda: has_rows(replication, 2), what="the row behind them")
        assert peak_bytes(replicator.pid) - before < 24 * MIB


@pytest.mark.long
def test_a_message_of_a_gigabyte_passes_a_replicator_with_256_mib(
    replication: Group, nats_server: NatsServer, stranger: str
) -> None:
    with follow(replication, nats_server) as replicator:
        replicator.wait_for_log("replicating")
        resource.prlimit(replicator.pid, resource.RLIMIT_DATA, (256 * MIB, 256 * MIB))
        for prefix in ("x", replication.names.definitions_prefix):
            emit(replication, stranger, prefix, f"convert_to(repeat('x', {1019 * MIB}), 'UTF8')")
        replication.source.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: has_rows(replication, 1), what="the row behind them", deadline_s=600)
        print(f"peak memory: {peak_bytes(replicator.pid) / MIB:.0f} MiB")
        assert peak_bytes(replicator.pid) < 256 * MIB


def test_forged_messages_are_counted_and_not_stored_one_by_one(
    replication: Group, stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    replication.replicate(track_ddl=True)
    before = replication.stream_state().messages
    emit(replication, stranger, replication.names.definitions_prefix, "'x'", count=1000)
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    caplog.clear()
    replication.replicate(track_ddl=True)
    assert replication.stream_state().messages - before <= 2
    assert replication.audit().rows == {"public.t insert": 1}
    log = replication.with_broker(lambda _, bucket: load_log(bucket))
    assert log.forged.count == 1000
    assert (
        len([record for record in caplog.records if "other programs emitted unsigned DDL messages" in record.getMessage()]) == 1
    )


def test_without_a_capture_no_logical_message_is_asked_for(replication: Group, stranger: str) -> None:
    replication.replicate()
    emit(replication, stranger, replication.names.definitions_prefix, "'x'", count=1000)
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    replication.replicate()
    assert (replication.audit().rows, replication.audit().changes) == ({"public.t insert": 1}, 1)
