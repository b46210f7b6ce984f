"""Definitions in a stream that real sessions publish: killed, with a capture that comes and goes, beside messages of others."""

from __future__ import annotations

import pytest

from pgsluice.replicator.publisher import Publisher
from pgsluice.shared.errors import TerminalError
from tests.replicated_group import Group

WIDE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 9000) n)"  # more than fits into one message of the stream


def note(group: Group) -> str:
    """A statement that tells of a definition."""
    return f"SELECT pgsluice.{group.names.in_source('note')}('t')"


def begin(group: Group) -> None:
    """Captures definitions, and publishes what tables are like to begin with, until a session has nothing to add."""
    for _ in range(3):
        group.replicate(track_ddl=True)


def test_a_transaction_of_definitions_alone_is_published(replication: Group) -> None:
    begin(replication)
    before = replication.audit()
    replication.source.execute(f"{note(replication)}; {note(replication)}")
    replication.replicate(track_ddl=True)
    audit = replication.audit()
    assert (audit.changes - before.changes, audit.definitions - before.definitions) == (2, 2)
    assert (audit.messages - before.messages, audit.is_settled) == (2, True)


def test_messages_of_others_are_no_changes(replication: Group) -> None:
    begin(replication)
    before = replication.audit()
    others = "SELECT pg_logical_emit_message(true, 'other', 'x'), pg_logical_emit_message(false, 'other', 'x')"
    own_prefix = f"SELECT pg_logical_emit_message(false, '{replication.names.definitions_prefix}', 'x')"
    replication.source.execute(f"{others}; {own_prefix}; INSERT INTO t VALUES (1, 'a'); {others}; INSERT INTO t VALUES (2, 'b')")
    replication.replicate(track_ddl=True)
    audit = replication.audit()
    assert (audit.changes - before.changes, audit.definitions - before.definitions) == (2, 0)


@pytest.mark.parametrize(
    "captured", [(False, True, True, True), (True, False, False, True), (False, True, False, True), (True, False, True, False)]
)
def test_sessions_with_and_without_a_capture_go_on_in_the_middle_of_a_transaction(
    replication: Group, monkeypatch: pytest.MonkeyPatch, captured: tuple[bool, ...]
) -> None:
    """Definitions have ordinals where they are captured, and a transaction goes on as it began."""
    begin(replication)
    insert, told = "INSERT INTO t VALUES ({}, " + WIDE + ")", note(replication)
    replication.source.execute("; ".join([insert.format(1), told, insert.format(2), told, *map(insert.format, (3, 4, 5, 6))]))
    replication.source.execute(f"INSERT INTO t VALUES (7, 'd'); {told}; INSERT INTO t VALUES (8, 'e')")
    publish, published = Publisher.publish, 0

    async def publish_one(publisher: Publisher, message: object) -> int:
        nonlocal published
        if published:
            await publisher.flush()
            raise TerminalError("cut off", "go on")
        published += 1
        return await publish(publisher, message)  # type: ignore[arg-type]

    with monkeypatch.context() as cut_off:
        cut_off.setattr(Publisher, "publish", publish_one)
        for track_ddl in captured[:-1]:
            published = 0
            with pytest.raises(TerminalError, match="cut off"):
                replication.replicate(track_ddl=track_ddl)
            assert not replication.audit().is_settled
    replication.replicate(track_ddl=captured[-1])
    audit = replication.audit()
    assert audit.rows == {"public.t insert": 8}
    assert audit.is_settled
