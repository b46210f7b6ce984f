"""The wire from end to end, without servers: what the replicator assembles decodes in the worker to what the source sent."""

from __future__ import annotations

import pytest

from pgsluice.replicator.assembler import Assembler, Message, Published
from pgsluice.shared.pgoutput import PgoutputMessage, decode_message
from pgsluice.shared.pgoutput.messages import LogicalMessage, Relation
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.position import LSN
from tests.shared.pgoutput.bodies import changes_of_columns, changes_of_messages, table_of
from tests.shared.pgoutput.corpus import Recording, recordings

NOTHING_PUBLISHED = Published(last=None, flushed=LSN(0), settled=True)


def assemble(recording: Recording, cut_bytes: int) -> tuple[list[PgoutputMessage], list[Message]]:
    """The messages a replicator asks for, and what it publishes of them."""
    assembler = Assembler(NOTHING_PUBLISHED, cut_bytes)
    sent: list[PgoutputMessage] = []
    published: list[Message | None] = []
    for frame in recording.messages:
        message = decode_message(frame)
        if isinstance(message, LogicalMessage):
            continue
        sent.append(message)
        if isinstance(message, Relation):
            published.append(assembler.add_relation(frame, table_of(message)))
        else:
            published.append(assembler.add(frame))
    published.append(assembler.drained())
    return sent, [message for message in published if message is not None]


@pytest.mark.parametrize("cut_bytes", [1, 500, 1 << 30])
@pytest.mark.parametrize("recording", recordings(), ids=str)
def test_what_the_replicator_publishes_decodes_to_what_the_source_sent(recording: Recording, cut_bytes: int) -> None:
    sent, published = assemble(recording, cut_bytes)
    found = []
    for message in published:
        columns = decode_changes(message.body, first_sequence=1, sequence=1, first_ordinal=message.first.ordinal)
        changes = changes_of_columns(columns)
        assert (changes[0].position, changes[-1].position, len(changes)) == (message.first, message.last, message.changes)
        assert columns.transactions[-1].commits == message.settled
        found += changes
    assert found == changes_of_messages(sent)
