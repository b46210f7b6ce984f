"""The options of the sinks: a part of the table in ``shared.options``."""

from __future__ import annotations

from shared.kinds import Kind
from shared.option import FILE, POSTGRES, STDOUT, Option, Role, connection_options, tls_options

SINK_OPTIONS = (
    Option("transactions", Kind.SWITCH, (*STDOUT, *FILE), "Write a line for each BEGIN and COMMIT too", "true", "false"),
    *connection_options("target-", "target", POSTGRES, POSTGRES),
    *tls_options("target-", "target", POSTGRES),
    Option(
        "target-sync-schema",
        Kind.SWITCH,
        POSTGRES,
        "Create target tables that are missing (pg_flo copied the whole source schema with pg_dump, and not by default)",
        "false",
        "true",
    ),
    Option(
        "target-disable-foreign-keys",
        Kind.SWITCH,
        POSTGRES,
        "Apply with session_replication_role = replica, so that the target's foreign keys and triggers do not fire",
        "true",
        "false",
    ),
    Option(
        "sink-option",
        Kind.PAIRS,
        (Role.CUSTOM,),
        "An option for a sink of your own; repeatable. The variable takes a JSON object, the file a mapping",
        "path=/var/lib/sink/changes.db",
        secret=True,
    ),
    Option(
        "file-output-dir",
        Kind.TEXT,
        FILE,
        "Directory of the file sink's files; made when missing",
        "/var/lib/pgsluice/out",
        required=FILE,
    ),
    Option(
        "format",
        Kind.TEXT,
        FILE,
        "What the files hold: JSON lines, or Parquet in one directory per table",
        "parquet",
        "json",
        choices=("json", "parquet"),
    ),
    Option(
        "file-compression",
        Kind.TEXT,
        FILE,
        "Compression of the files (default: none for JSON lines, zstd for Parquet)",
        "zstd",
        choices=("none", "gzip", "zstd"),
    ),
    Option(
        "file-rotate-bytes",
        Kind.SIZE,
        FILE,
        "A file is finished when it holds so much; for Parquet: of rows before they are encoded",
        "1GB",
        "100MB",
        minimum=1,
    ),
    Option("file-rotate-age", Kind.DURATION, FILE, "A file is finished so long after its first change", "15m", "1h", minimum=1),
    Option("webhook-url", Kind.TEXT, (Role.WEBHOOK,), "Where the webhook sink posts", "https://example.com/hook", secret=True),
)
