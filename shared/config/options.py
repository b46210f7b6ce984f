"""The one table of all options: what each is called, means, defaults to, and which command reads it.

The command line, the environment, the configuration file, the help texts and ``config.example.yaml`` all follow from it. An
option ``nats-url`` is the flag ``--nats-url``, the variable ``PGSLUICE_NATS_URL`` and the YAML key ``nats-url``. All roles
share one flat key space, so that one file can serve every process of a group: a key that another role reads is valid and
ignored. Names and meanings follow pg_flo's, whose files load unchanged.

Defaults are written as a user would write them, and read by the same functions.
"""

from __future__ import annotations

from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import (
    ALL,
    CATALOG,
    EVERY,
    LOG_FORMATS,
    LOG_LEVELS,
    OPERATIONS,
    ORIGINS,
    POSTGRES,
    REPLICATOR,
    SOURCE,
    WORKER,
    Option,
    Role,
    connection_options,
    tls_options,
)
from pgsluice.shared.config.sink_options import SINK_OPTIONS

__all__ = ["BY_NAME", "OPTIONS", "Option", "Role", "options_of"]

_GENERAL = (
    Option(
        "config",
        Kind.FILE,
        ALL,
        "Configuration file in YAML; ~/.pgsluice.yaml is read when none is given and it is there",
        "pgsluice.yaml",
    ),
    Option("group", Kind.TEXT, ALL, "Name that a replicator and its workers share", "orders", required=ALL),
    Option("log-level", Kind.TEXT, ALL, "Least important events to log", "info", "info", choices=LOG_LEVELS),
    Option("log-format", Kind.TEXT, ALL, "Form of the log, on standard error", "json", "text", choices=LOG_FORMATS),
)

_NATS = (
    Option(
        "nats-url",
        Kind.SERVERS,
        EVERY,
        "NATS servers, comma-separated; tls:// asks for TLS",
        "nats://localhost:4222",
        required=EVERY,
        secret=True,
    ),
    Option("nats-user", Kind.TEXT, EVERY, "User at NATS", "pgsluice"),
    Option("nats-password", Kind.TEXT, EVERY, "Password at NATS", "${PGSLUICE_NATS_PASSWORD:-}", secret=True),
    Option(
        "nats-password-file",
        Kind.FILE,
        EVERY,
        "File that holds the password at NATS and nothing else",
        "/run/secrets/nats-password",
        content_of="nats-password",
    ),
    Option("nats-token", Kind.TEXT, EVERY, "Token at NATS", "${PGSLUICE_NATS_TOKEN:-}", secret=True),
    Option(
        "nats-token-file",
        Kind.FILE,
        EVERY,
        "File that holds the token at NATS and nothing else",
        "/run/secrets/nats-token",
        content_of="nats-token",
    ),
    Option("nats-credentials", Kind.FILE, EVERY, "NATS credentials file (JWT and seed)", "/etc/pgsluice/nats.creds"),
    Option("nats-tls-ca", Kind.FILE, EVERY, "Certificates that vouch for the NATS servers", "/etc/pgsluice/nats-ca.pem"),
    Option("nats-tls-cert", Kind.FILE, EVERY, "Our certificate at NATS", "/etc/pgsluice/nats-client.pem"),
    Option("nats-tls-key", Kind.FILE, EVERY, "Private key of that certificate", "/etc/pgsluice/nats-client.key"),
)

_CONNECT_TIMEOUT = Option(
    "connect-timeout",
    Kind.DURATION,
    (Role.REPLICATOR, Role.WORKER),
    "How long NATS and the source may be away when the program starts, before it gives up with 75",
    "60s",
    "60s",
    minimum=1,
)

_REPLICATOR = (
    *connection_options("", "source", SOURCE, (*CATALOG, Role.DROP, Role.DROP_FROM_SOURCE)),
    *tls_options("", "source", SOURCE),
    Option("schema", Kind.TEXT, CATALOG, "Schema of the tables that are named without one", "public", "public"),
    Option(
        "tables",
        Kind.LIST,
        CATALOG,
        "Tables to replicate: table, schema.table, schema.* or order_*; all tables of the schema when none is given",
        "customers,sales.*",
    ),
    Option(
        "publish",
        Kind.LIST,
        REPLICATOR,
        "Operations to replicate",
        "insert,update,delete,truncate",
        "insert,update,delete,truncate",
        choices=OPERATIONS,
    ),
    Option(
        "publication",
        Kind.TEXT,
        CATALOG,
        "Publication that an administrator made, taken as it is (default: one that pgsluice makes)",
        "shop_changes",
    ),
    Option(
        "check-interval",
        Kind.DURATION,
        REPLICATOR,
        "How often publication and tables at the source are compared with what was replicated before",
        "60s",
        "60s",
        minimum=1,
    ),
    Option(
        "origin",
        Kind.TEXT,
        REPLICATOR,
        "Replicate any change, or with 'none' only what no other replication wrote at the source (PostgreSQL 16 or later)",
        "none",
        "any",
        choices=ORIGINS,
    ),
    Option(
        "failover",
        Kind.SWITCH,
        REPLICATOR,
        "Make the slot follow a failover to a standby (PostgreSQL 17 or later)",
        "true",
        "false",
    ),
    Option(
        "slot-timeout",
        Kind.DURATION,
        REPLICATOR,
        "How long to wait for transactions that are open in the source when a slot is made",
        "1h",
        "10m",
        minimum=1,
    ),
    Option(
        "stream", Kind.SWITCH, REPLICATOR, "Mode: replicate changes as they come (the mode when none is given)", "true", "false"
    ),
    Option("copy", Kind.SWITCH, REPLICATOR, "Mode: copy the tables as they are, then stop", "false", "false"),
    Option(
        "copy-and-stream",
        Kind.SWITCH,
        REPLICATOR,
        "Mode: copy the tables as they are and replicate every change since",
        "false",
        "false",
    ),
    Option(
        "max-copy-workers-per-table",
        Kind.NUMBER,
        REPLICATOR,
        "Tasks that copy one table at the same time",
        "4",
        "4",
        minimum=1,
        maximum=1024,
    ),
    Option(
        "max-copy-connections",
        Kind.NUMBER,
        REPLICATOR,
        "Tasks, each with a connection to the source, that copy at the same time, all tables together",
        "8",
        "8",
        minimum=1,
        maximum=1024,
    ),
    Option(
        "copy-range-bytes",
        Kind.SIZE,
        REPLICATOR,
        "Bytes of a table's pages that one task copies at once",
        "64MiB",
        "64MiB",
        minimum=8 * 1024,
    ),
    Option("retry-errored", Kind.SWITCH, REPLICATOR, "Copy tables again whose copy was given up", "true", "false"),
    Option(
        "recopy",
        Kind.LIST,
        REPLICATOR,
        "Tables to be copied again at this start, into emptied tables (spelled as in tables); give it as a flag, once",
        "orders",
    ),
    Option(
        "without-copy",
        Kind.LIST,
        REPLICATOR,
        "Tables to go on with although rows or changes of them are missing at the targets (spelled as in tables)",
        "orders",
    ),
    Option("track-ddl", Kind.SWITCH, REPLICATOR, "Replicate changes of table definitions (not available yet)", "false", "false"),
    Option(
        "until-lsn",
        Kind.LSN,
        REPLICATOR,
        "Publish up to this place in the write-ahead log and exit; 'current' is where it is now",
        "current",
        words=("current",),
    ),
)

_STREAMS = (
    Option(
        "stream-replicas", Kind.NUMBER, REPLICATOR, "Copies of each stream in the NATS cluster", "3", "1", minimum=1, maximum=5
    ),
    Option("stream-placement-tags", Kind.LIST, REPLICATOR, "Tags of the NATS servers that hold the streams", "ssd,eu-west"),
    Option(
        "stream-max-bytes",
        Kind.SIZE,
        REPLICATOR,
        "Most bytes of one stream; when it is full the replicator waits and the source keeps its log (default: its own; "
        "for a new stream an eighth of what NATS has free, from 256MiB to 10GiB)",
        "10GiB",
        minimum=1024 * 1024,
    ),
    Option("retention", Kind.DURATION, REPLICATOR, "How long applied messages stay in the stream for replay", "24h", "24h"),
)

_WORKER = (
    Option(
        "name",
        Kind.TEXT,
        WORKER,
        "Name of this worker, which owns its position in the stream (default: its sink's kind)",
        "postgres",
    ),
    Option(
        "batch-size",
        Kind.NUMBER,
        WORKER,
        "Most stream messages in one micro-batch (a message holds up to 256 KiB of changes)",
        "8192",
        "8192",
        minimum=1,
        maximum=1_000_000,
    ),
    Option("batch-bytes", Kind.SIZE, WORKER, "Most bytes of stream messages in one micro-batch", "64MiB", "64MiB", minimum=1),
    Option("rules-config", Kind.FILE, WORKER, "Rules file: which rows are applied, and what is masked or replaced", "rules.yaml"),
    Option("routing-config", Kind.FILE, WORKER, "Routing file: to which tables, columns and operations", "routing.yaml"),
    Option(
        "max-dead-letters",
        Kind.NUMBER,
        WORKER,
        "Most changes that may be set aside as dead letters; one more stops the worker. 0: stop at the first",
        "1000",
        "1000",
        minimum=0,
    ),
    Option(
        "until-sequence",
        Kind.NUMBER,
        WORKER,
        "Apply up to this stream sequence and exit; 'current' is the last one now",
        "current",
        minimum=1,
        words=("current",),
    ),
    Option(
        "spark",
        Kind.PAIRS,
        (Role.WORKER, Role.REPLICATOR),
        "A Spark setting: master (default local[*]), memory (default 1g) or any spark.* key; repeatable. "
        "The variable takes a JSON object, the file a mapping",
        "master=local[4]",
    ),
)

_NO_SCHEMA_DUMP = "tables are created from what the stream says of them, without a connection to the source"
_NO_RETRY_LIMIT = "connections are tried again for ever, with growing pauses"


def _ignored(name: str, example: str, roles: tuple[Role, ...], reason: str) -> Option:
    return Option(
        name,
        Kind.TEXT,
        roles,
        f"Accepted for pg_flo's files and ignored: {reason}",
        example,
        secret=name.endswith("password"),
        no_effect=reason,
    )


_IGNORED = (
    _ignored("source-host", "db.example.com", POSTGRES, _NO_SCHEMA_DUMP),
    _ignored("source-port", "5432", POSTGRES, _NO_SCHEMA_DUMP),
    _ignored("source-dbname", "shop", POSTGRES, _NO_SCHEMA_DUMP),
    _ignored("source-user", "pgsluice", POSTGRES, _NO_SCHEMA_DUMP),
    _ignored("source-password", "${PGSLUICE_SOURCE_PASSWORD:-}", POSTGRES, _NO_SCHEMA_DUMP),
    _ignored("retry-max-attempts", "3", REPLICATOR, _NO_RETRY_LIMIT),
    _ignored("retry-initial-wait", "1s", REPLICATOR, _NO_RETRY_LIMIT),
    _ignored("retry-max-wait", "8s", REPLICATOR, _NO_RETRY_LIMIT),
)

OPTIONS: tuple[Option, ...] = (*_GENERAL, *_NATS, _CONNECT_TIMEOUT, *_REPLICATOR, *_STREAMS, *_WORKER, *SINK_OPTIONS, *_IGNORED)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}


def options_of(*roles: Role) -> tuple[Option, ...]:
    """The options that a command with these roles reads, in the table's order."""
    return tuple(option for option in OPTIONS if not set(roles).isdisjoint(option.roles))
