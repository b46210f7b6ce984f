"""One pgoutput message: the decoder, and the shorter ways to a Begin and a Commit."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.errors import WireError
from pgsluice.shared.pgoutput.decoder import begin_lsn, begin_transaction, commit_lsns, decode_message
from pgsluice.shared.pgoutput.encoder import encode_message
from pgsluice.shared.pgoutput.messages import Begin, Commit
from tests.fuzz.target import is_same, read
from tests.shared.pgoutput.corpus import recordings


def feed(data: bytes) -> None:
    message = read(lambda: decode_message(data), WireError)
    if message is not None:
        is_same(message, decode_message(encode_message(message)))
    if not data:
        return
    begun = read(lambda: (begin_lsn(data), *begin_transaction(data)), WireError)
    committed = read(lambda: commit_lsns(data), WireError)
    if isinstance(message, Begin):
        is_same(begun, (message.final_lsn, message.xid, message.committed_at))
    if isinstance(message, Commit):
        is_same(committed, (message.commit_lsn, message.end_lsn))


def seeds() -> Iterator[bytes]:
    for recording in recordings():
        yield from recording.messages
