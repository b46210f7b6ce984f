"""Messages of PostgreSQL's output plugin ``pgoutput``, protocol version 1, one by one: decoded and encoded.

Pure, and for both processes, so without NumPy and Arrow; a whole stream message as columns is ``shared.rows.columns``.
"""

from pgsluice.shared.pgoutput.decoder import decode_message
from pgsluice.shared.pgoutput.encoder import encode_message, encode_messages
from pgsluice.shared.pgoutput.messages import PgoutputMessage

__all__ = ["PgoutputMessage", "decode_message", "encode_message", "encode_messages"]
