"""Definitions in a stream that real sessions publish: killed, begun by an earlier version, beside messages of others."""

from __future__ import annotations

import functools

import pytest

from pgsluice.replicator import publisher as publisher_module
from pgsluice.replicator.publisher import Publisher
from pgsluice.replicator.receiver import Receiver
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.message import MessageHeaders
from tests.replicated_group import Group

WIDE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 9000) n)"  # more than fits into one message of the stream


def emit(group: Group, content: str = "x") -> str:
    """A statement that emits what only the group's function may; it is a change all the same."""
    return f"SELECT pg_logical_emit_message(true, '{group.names.definitions_prefix}', '{content}')"


def test_a_transaction_of_definitions_alone_is_published(replication: Group) -> None:
    replication.replicate()
    replication.source.execute(f"{emit(replication)}; {emit(replication)}")
    replication.replicate()
    audit = replication.audit()
    assert (audit.changes, audit.definitions, audit.messages, audit.is_settled) == (2, 2, 2, True)


def test_messages_of_others_are_no_changes(replication: Group) -> None:
    replication.replicate()
    others = "SELECT pg_logical_emit_message(true, 'other', 'x'), pg_logical_emit_message(false, 'other', 'x')"
    own_prefix = f"SELECT pg_logical_emit_message(false, '{replication.names.definitions_prefix}', 'x')"
    replication.source.execute(f"{others}; {own_prefix}; INSERT INTO t VALUES (1, 'a'); {others}; INSERT INTO t VALUES (2, 'b')")
    replication.replicate()
    audit = replication.audit()
    assert (audit.changes, audit.definitions) == (2, 0)


def test_a_stream_of_the_version_before_goes_on_in_the_middle_of_a_transaction(
    replication: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for no logical messages, so those of that transaction have no ordinals; those of the next one do."""
    replication.replicate()
    insert = "INSERT INTO t VALUES ({}, " + WIDE + ")"
    replication.source.execute(
        "; ".join([insert.format(1), emit(replication), insert.format(2), emit(replication), insert.format(3)])
    )
    replication.source.execute(f"INSERT INTO t VALUES (4, 'd'); {emit(replication)}; INSERT INTO t VALUES (5, 'e')")
    publish = Publisher.publish

    async def publish_one(publisher: Publisher, message: object) -> int:
        if publisher.end.sequence:
            await publisher.flush()
            raise TerminalError("cut off", "go on")
        return await publish(publisher, message)  # type: ignore[arg-type]

    async def pass_over(receiver: Receiver, frame: bytes) -> None:
        """As the version before did not ask for such messages."""

    with monkeypatch.context() as earlier:
        earlier.setattr(publisher_module, "MessageHeaders", functools.partial(MessageHeaders, counts_definitions=False))
        earlier.setattr(Receiver, "_add_logical_message", pass_over)
        earlier.setattr(Publisher, "publish", publish_one)
        with pytest.raises(TerminalError, match="cut off"):
            replication.replicate()
    audit = replication.audit()
    assert (audit.changes, audit.is_settled) == (1, False)
    replication.replicate()
    audit = replication.audit()
    assert (audit.changes, audit.definitions, audit.transactions) == (6, 1, 2)
    assert audit.rows == {"public.t insert": 5}
