"""Messages of PostgreSQL's output plugin ``pgoutput``, protocol version 1: one by one, or a whole stream message as columns."""

from shared.pgoutput.columns import decode_changes
from shared.pgoutput.decoder import decode_message
from shared.pgoutput.messages import PgoutputMessage

__all__ = ["PgoutputMessage", "decode_changes", "decode_message"]
