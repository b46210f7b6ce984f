"""The exit code of ``pgsluice status``, which a script asks whether a group is there."""

from __future__ import annotations

import json

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import CopyMode, CopyState, Ledger, Phase, SnapshotRecord, TableRecord, now
from pgsluice.shared.broker.streams import ChangeStream
from tests.replicated_group import Group
from tests.servers import NatsServer, PgsluiceProcess


def status(group: str, nats_server: NatsServer, *flags: str) -> tuple[int, str]:
    with PgsluiceProcess("status", *flags, config={"group": group, "nats-url": nats_server.url}) as process:
        return process.wait(), process.stdout()


def test_status_of_a_group_that_was_never_started_is_1_and_of_another_0(replication: Group, nats_server: NatsServer) -> None:
    code, printed = status("no-such-group", nats_server)
    assert (code, "has never been started" in printed) == (1, True)
    code, printed = status("no-such-group", nats_server, "--json")
    assert (code, json.loads(printed)["bound_to"]) == (1, None)
    replication.replicate()
    assert status(replication.name, nats_server)[0] == 0


def test_status_of_a_group_that_is_only_copied_is_0(replication: Group, nats_server: NatsServer) -> None:
    """As ``--copy`` leaves it: tables in the ledger, and no slot that it would be bound to."""

    async def note(_: ChangeStream, bucket: StateBucket) -> None:
        await bucket.ensure(replication.settings().stream)
        copy = SnapshotRecord("", "", CopyState.RUNNING, CopyMode.COPY, now(), "", 0, "7", "shop", "2026-01-31T12:00:00Z")
        await Ledger(bucket).store_snapshot(copy)
        await Ledger(bucket).store_table(TableRecord(1, "public", "t", Phase.FINISHED_COPY, now()))

    replication.with_broker(note)
    code, printed = status(replication.name, nats_server)
    assert (code, "copied, and never streamed" in printed, "public.t" in printed) == (0, True, True)
