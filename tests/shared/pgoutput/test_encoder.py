"""What is encoded is what a server would have sent: the decoder reads it back, and recorded messages come out as they were."""

from __future__ import annotations

import pytest
from hypothesis import given

from pgsluice.shared.pgoutput import PgoutputMessage, decode_message, encode_message
from tests.shared.pgoutput.corpus import Recording, recordings
from tests.shared.pgoutput.strategies import messages


@pytest.mark.parametrize("recording", recordings(), ids=str)
def test_recorded_messages_decode_to_what_encodes_to_the_same_bytes(recording: Recording) -> None:
    assert [encode_message(decode_message(message)) for message in recording.messages] == list(recording.messages)


@given(messages)
def test_a_message_decodes_to_what_was_encoded(message: PgoutputMessage) -> None:
    decoded = decode_message(encode_message(message))
    assert decoded == message
    assert type(decoded) is type(message)
