"""Settings as typed values, after the command line, the environment and the file were merged and checked.

``shared.config`` makes them; everything else takes them. No field holds a default: defaults stand beside the options.
Secrets are excluded from ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """How to reach one database. ``""`` means "not given" and leaves the choice to libpq."""

    host: str
    port: int
    dbname: str
    user: str
    password: str = field(repr=False)
    sslmode: str
    sslrootcert: str
    sslcert: str
    sslkey: str


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """How to reach NATS. ``url`` may list several servers, separated by commas. ``""`` means "not given"."""

    url: str = field(repr=False)
    user: str
    password: str = field(repr=False)
    token: str = field(repr=False)
    credentials_file: str
    tls_ca: str
    tls_cert: str
    tls_key: str


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How the group's streams are made. ``max_bytes`` is 0 when nobody chose it."""

    replicas: int
    placement_tags: tuple[str, ...]
    max_bytes: int
    retention_s: float


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``level`` is a ``logging`` level name; ``format`` is "text" or "json"."""

    level: str
    format: str


@dataclass(frozen=True, slots=True)
class CopySettings:
    """How the rows that are there are copied, and whether changes follow (``then_stream``).

    ``workers_per_table`` and ``connections`` bound the tasks that copy at the same time, of one table and of all. ``spark`` holds
    Spark's own settings, as WorkerSettings does. ``recopy`` holds patterns of tables that are copied anew.
    """

    then_stream: bool
    workers_per_table: int
    connections: int
    range_bytes: int
    retry_errored: bool
    recopy: tuple[str, ...]
    spark: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """One replicator. ``copy`` is None when it only streams.

    ``tables`` holds patterns: ``table`` (in ``schema``), ``schema.table`` or ``schema.*``; empty means all of ``schema``.
    ``publish`` holds operations of the publication; ``publication`` is one that an administrator made, "" for the group's own.
    ``without_copy`` holds patterns of tables that are taken although rows or changes of them are missing at the targets.
    ``until_lsn`` is "" (for ever), "current" or an LSN's text.
    ``connect_timeout_s`` is how long the first session may take to begin. ``origin`` is pgoutput's: "any", or "none" for changes
    that no replication origin has.
    """

    group: str
    source: PostgresSettings
    nats: NatsSettings
    stream: StreamSettings
    log: LogSettings
    schema: str
    tables: tuple[str, ...]
    publish: tuple[str, ...]
    publication: str
    without_copy: tuple[str, ...]
    check_interval_s: float
    origin: str
    failover: bool
    slot_timeout_s: float
    until_lsn: str
    copy: CopySettings | None
    connect_timeout_s: float


@dataclass(frozen=True, slots=True)
class StatusSettings:
    """What ``pgsluice status`` looks at. ``source`` is None when no source was given: then only the broker is asked."""

    group: str
    source: PostgresSettings | None
    nats: NatsSettings
    log: LogSettings


@dataclass(frozen=True, slots=True)
class SourceTablesSettings:
    """Which tables of which source a group publishes; ``tables``, ``schema`` and ``publication`` are those of
    ReplicatorSettings."""

    group: str
    source: PostgresSettings
    schema: str
    tables: tuple[str, ...]
    publication: str


@dataclass(frozen=True, slots=True)
class DropSettings:
    """Where ``pgsluice drop`` finds the group's objects; None: what is there stays."""

    group: str
    source: PostgresSettings | None
    nats: NatsSettings | None
    log: LogSettings


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Where a command finds what a group has in NATS."""

    group: str
    nats: NatsSettings
    log: LogSettings


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What every worker needs, whatever its sink. ``until_sequence`` is "" (for ever), "current" or a number's text.

    ``batch_messages`` and ``batch_bytes`` bound one micro-batch, unless a single transaction is larger. ``spark`` holds
    Spark's own settings under their full names; it is kept out of ``repr`` because storage credentials are among them.
    ``rules_file`` and ``routing_file`` are paths, "" without. ``connect_timeout_s`` is for the first connection to NATS.
    """

    group: str
    name: str
    nats: NatsSettings
    log: LogSettings
    until_sequence: str
    batch_messages: int
    batch_bytes: int
    rules_file: str
    routing_file: str
    max_dead_letters: int
    spark: dict[str, str] = field(repr=False)
    connect_timeout_s: float


@dataclass(frozen=True, slots=True)
class PostgresSinkSettings:
    """The Postgres sink's own. ``sync_schema``: create target tables that are missing. ``disable_foreign_keys``: apply under
    ``session_replication_role = replica``, as Postgres's own apply worker does. ``sync_sequences``: keep the target's sequences
    ahead of the rows. ``lock_timeout_s`` bounds each wait for a lock."""

    target: PostgresSettings
    sync_schema: bool
    disable_foreign_keys: bool
    sync_sequences: bool
    lock_timeout_s: float


@dataclass(frozen=True, slots=True)
class FileSinkSettings:
    """The file sink's own. ``format`` is "json", "pg-flo" or "parquet", ``compression`` "none", "gzip" or "zstd". A file in
    progress is finished when it holds ``rotate_bytes`` or is ``rotate_age_s`` old. ``transactions``: lines for BEGIN and COMMIT
    too."""

    directory: str
    format: str
    compression: str
    rotate_bytes: int
    rotate_age_s: float
    transactions: bool


@dataclass(frozen=True, slots=True)
class WebhookSinkSettings:
    """The webhook sink's own. ``format`` is "array", "lines" or "single"; ``batch_size`` and ``batch_bytes`` bound a request.

    ``ca_file`` is "" for what the machine trusts, ``secret`` and ``token`` are "" for none. ``transactions``: send begins and
    commits too. ``shape`` of an object is "json" or "pg-flo".
    """

    url: str = field(repr=False)
    format: str
    batch_size: int
    batch_bytes: int
    connections: int
    timeout_s: float
    secret: str = field(repr=False)
    token: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    ca_file: str
    allow_hosts: tuple[str, ...]
    transactions: bool
    shape: str
