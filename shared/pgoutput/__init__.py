"""Messages of PostgreSQL's output plugin ``pgoutput``, protocol version 1: one by one, or a whole stream message as columns."""

from pgsluice.shared.pgoutput.decoder import decode_message
from pgsluice.shared.pgoutput.messages import PgoutputMessage
from pgsluice.shared.rows.columns import decode_changes

__all__ = ["PgoutputMessage", "decode_changes", "decode_message"]
