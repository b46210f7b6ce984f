"""``pgsluice drop``: two halves, of which each can be removed without the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from psycopg import pq

from pgsluice.console.drop import run
from pgsluice.console.program import run as program
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import LeaseRecord, lease_key
from pgsluice.shared.config.settings import DropSettings
from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch
from pgsluice.worker.sinks.nats.sink import NatsSink
from tests.replicated_group import Group
from tests.replicator.definitions.captured import install
from tests.servers.child import free_port
from tests.worker.sinks.nats.target import nats_settings
from tests.worker.sinks.settings import worker_settings


def settings(replication: Group) -> DropSettings:
    return DropSettings(replication.name, replication.settings().log, replication.nats, replication.source.settings)


def source_objects(replication: Group) -> tuple[int, int]:
    """Slots and publications of the group's name."""
    [(slots, publications)] = replication.source.execute(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s),"
        " (SELECT count(*) FROM pg_publication WHERE pubname = %s)",
        [replication.names.slot, replication.names.publication],
    )
    return slots, publications


def nats_objects(replication: Group, group: str = "") -> tuple[bool, bool]:
    """Whether stream and bucket are there."""

    async def ask() -> tuple[bool, bool]:
        async with connected(replication.nats, "test") as client:
            names = GroupNames(group or replication.name)
            return await ChangeStream(client, names).state() is not None, await StateBucket(client, names).exists()

    return asyncio.run(ask())


def test_both_halves_are_removed(replication: Group) -> None:
    replication.replicate()
    assert (source_objects(replication), nats_objects(replication)) == ((1, 1), (True, True))
    run(settings(replication))
    assert (source_objects(replication), nats_objects(replication)) == ((0, 0), (False, False))
    run(settings(replication))


def test_the_capture_of_definitions_goes_with_the_source(replication: Group) -> None:
    replication.replicate()
    install(replication.source, replication.names, "public.*")
    other = GroupNames(replication.name + "-2")
    install(replication.source, other)
    run(settings(replication))
    triggers = replication.source.execute("SELECT evtname FROM pg_event_trigger ORDER BY 1")
    assert triggers == [(other.event_trigger(noun),) for noun in ("ddl", "drop", "rewrite")]
    run(replace(settings(replication), group=other.group))
    assert replication.source.execute("SELECT to_regnamespace('pgsluice') IS NULL") == [(True,)]


def test_a_capture_that_an_administrator_installed_is_named_when_the_rest_is_gone(replication: Group) -> None:
    replication.replicate()
    role = f"limited_{replication.names.publication}"
    replication.source.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION; ALTER PUBLICATION {replication.names.publication} OWNER TO {role}"
    )
    install(replication.source, replication.names)
    limited = replace(settings(replication), source=replace(replication.source.settings, user=role))
    with pytest.raises(TerminalError, match=r"not everything is removed: removing the capture .*ddl sql --remove"):
        run(limited)
    assert (source_objects(replication), nats_objects(replication)) == ((0, 0), (False, False))
    run(settings(replication))
    run(limited)
    replication.source.execute(f"DROP ROLE {role}")


def test_nothing_is_removed_while_a_replicator_reads_the_slot(replication: Group) -> None:
    replication.replicate()
    source, names = replication.source.settings, replication.names
    target = f"host={source.host} port={source.port} dbname={source.dbname} user={source.user} replication=database"
    reader = pq.PGconn.connect(target.encode())
    start = f"START_REPLICATION SLOT {names.slot} LOGICAL 0/0 (proto_version '1', publication_names '{names.publication}')"
    assert reader.exec_(start.encode()).status == pq.ExecStatus.COPY_BOTH
    try:
        with pytest.raises(TerminalError, match=f"{names.slot}.* in use by process {reader.backend_pid}"):
            run(settings(replication))
    finally:
        reader.finish()
    assert (source_objects(replication), nats_objects(replication)) == ((1, 1), (True, True))


def test_each_half_is_removed_alone(replication: Group) -> None:
    replication.replicate()
    run(replace(settings(replication), source=None))
    assert (source_objects(replication), nats_objects(replication)) == ((1, 1), (False, False))
    run(replace(settings(replication), nats=None))
    assert source_objects(replication) == (0, 0)


@pytest.mark.long
def test_a_side_that_is_gone_is_named_with_the_option_for_the_other_one(replication: Group) -> None:
    replication.replicate()
    whole = settings(replication)
    with pytest.raises(TransientError, match=r"does not answer.*--nats-only"):
        run(replace(whole, source=replace(replication.source.settings, port=free_port())))
    assert (source_objects(replication), nats_objects(replication)) == ((1, 1), (True, True))
    with pytest.raises(TransientError, match=r"does not answer.*--source-only"):
        run(replace(whole, nats=replace(replication.nats, url=f"nats://127.0.0.1:{free_port()}")))
    assert source_objects(replication) == (0, 0)


def test_a_publication_that_an_administrator_made_stays_and_the_rest_goes(replication: Group) -> None:
    replication.replicate()
    replication.source.execute(f"COMMENT ON PUBLICATION {replication.names.publication} IS NULL")
    run(settings(replication))
    assert (source_objects(replication), nats_objects(replication)) == ((0, 1), (False, False))


def test_what_may_not_be_removed_is_named_when_the_rest_is_gone(replication: Group) -> None:
    replication.replicate()
    role = f"limited_{replication.names.publication}"
    replication.source.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    with pytest.raises(TerminalError, match=f"not everything is removed: dropping publication {replication.names.publication}"):
        run(replace(settings(replication), source=replace(replication.source.settings, user=role)))
    assert (source_objects(replication), nats_objects(replication)) == ((0, 1), (False, False))
    replication.source.execute(f"DROP ROLE {role}")


def test_a_slot_that_is_not_ours_is_left_and_named(replication: Group) -> None:
    replication.source.execute(f"SELECT pg_create_logical_replication_slot('{replication.names.slot}', 'test_decoding')")
    with pytest.raises(TerminalError, match="uses plugin test_decoding"):
        run(settings(replication))
    assert source_objects(replication) == (1, 0)


def test_names_of_another_group_are_not_touched(replication: Group) -> None:
    replication.replicate()
    other = replace(settings(replication), group=replication.name.replace("-", "_"))
    with pytest.raises(UsageError, match=r"belongs to group.*own spelling"):
        run(other)
    assert source_objects(replication) == (1, 1)


def publish_second_group(replication: Group) -> str:
    """Its name, when ``worker nats`` published a batch of it and was stopped."""
    second = f"{replication.name}-next"
    replication.replicate()
    sink = NatsSink(worker_settings(replication.name, replication.nats, "nats"), nats_settings("", group=second))
    try:
        sink.open()
        apply(sink, batch([1, 2]))
    finally:
        sink.close()
    return second


def hold_lease(replication: Group, worker: str) -> None:
    async def hold() -> None:
        async with connected(replication.nats, "test") as client:
            await StateBucket(client, replication.names).put(lease_key(worker), LeaseRecord("host", 1))

    asyncio.run(hold())


@pytest.mark.parametrize("keys_of_source", [False, True])
def test_a_group_that_a_worker_publishes_is_removed_and_nothing_of_the_one_it_comes_from(
    replication: Group, tmp_path: Path, keys_of_source: bool
) -> None:
    """Whether or not the file says where the source is."""
    second = publish_second_group(replication)
    keys: dict[str, object] = {"group": second, "nats-url": replication.nats.url}
    if keys_of_source:
        source = replication.source.settings
        keys |= {key: getattr(source, key) for key in ("host", "port", "dbname", "user")}
    (tmp_path / "clean.yaml").write_text(yaml.safe_dump(keys))
    assert nats_objects(replication, second) == (True, True)
    assert program(["drop", "--yes", "--config", str(tmp_path / "clean.yaml")]) == 0
    assert nats_objects(replication, second) == (False, False)
    assert (source_objects(replication), nats_objects(replication)) == ((1, 1), (True, True))


def test_a_group_whose_publishing_worker_runs_stays(replication: Group) -> None:
    second = publish_second_group(replication)
    hold_lease(replication, "nats")
    with pytest.raises(TerminalError, match=rf"worker 'nats' of group '{replication.name}' runs, and publishes group '{second}'"):
        run(replace(settings(replication), group=second))
    assert nats_objects(replication, second) == (True, True)
