"""Keys of pg_flo's files that nothing here reads.

They are accepted, so that those files load unchanged, and a notice explains why they have no effect.
"""

from __future__ import annotations

from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option


def _ignored(name: str, example: str, reason: str) -> Option:
    help_text = f"Accepted for pg_flo's files and ignored: {reason}"
    return Option(name, Kind.TEXT, help_text, example, secret=name.endswith("password"), no_effect=reason)


_NO_SCHEMA_DUMP = "tables are created from the stream, without a connection to the source"
_NO_RETRY_LIMIT = "connections are retried indefinitely, with growing pauses (see 'retry')"

SCHEMA_DUMP_OPTIONS = (
    _ignored("source-host", "db.example.com", _NO_SCHEMA_DUMP),
    _ignored("source-port", "5432", _NO_SCHEMA_DUMP),
    _ignored("source-dbname", "shop", _NO_SCHEMA_DUMP),
    _ignored("source-user", "pgsluice", _NO_SCHEMA_DUMP),
    _ignored("source-password", "${PGSLUICE_SOURCE_PASSWORD:-}", _NO_SCHEMA_DUMP),
)
"""Options of pg_flo's worker for Postgres."""

RETRY_OPTIONS = (
    _ignored("retry-max-attempts", "3", _NO_RETRY_LIMIT),
    _ignored("retry-initial-wait", "1s", _NO_RETRY_LIMIT),
    _ignored("retry-max-wait", "8s", _NO_RETRY_LIMIT),
)
"""Options of pg_flo's replicator."""
