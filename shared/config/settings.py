"""The settings of every command, each declared with the options it is read from; those of a sink are in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from pgsluice.shared.config import pg_flo
from pgsluice.shared.config.alert_settings import AlertSettings
from pgsluice.shared.config.cluster_problems import cluster_problems
from pgsluice.shared.config.connections import CONNECT_TIMEOUT, GROUP, SCHEMA, SPARK
from pgsluice.shared.config.connections import LogSettings as LogSettings
from pgsluice.shared.config.connections import NatsSettings as NatsSettings
from pgsluice.shared.config.connections import PostgresSettings as PostgresSettings
from pgsluice.shared.config.copy_settings import CopySettings, is_copying, mode_of
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.inspect_settings import ROUTING_FILE, RULES_FILE, TraceSettings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.metrics_settings import MetricsSettings
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.placement_settings import PlacementSettings
from pgsluice.shared.config.retry_settings import RETRY, retry_policy
from pgsluice.shared.config.server_settings import DocumentSettings, RunSettings, ServerSettings, TokenSettings
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.kafka.kafka_settings import SOURCE_KAFKA, KafkaSourceSettings, reads_kafka
from pgsluice.shared.pipelines.pipeline_settings import RunPipelineSettings, RunsSettings, ScheduleSettings, StepsSettings
from pgsluice.shared.process.retrying import RetryPolicy
from pgsluice.shared.subscriptions.subscription_settings import SubscribingSettings
from pgsluice.shared.wire.names import check_worker_name

OPERATIONS = ("insert", "update", "delete", "truncate")
ORIGINS = ("any", "none")


TABLES = Option(
    "tables",
    Kind.LIST,
    "Tables to replicate: table, schema.table, schema.* or order_* (default: all tables of the schema)",
    "customers,sales.*",
)
PUBLICATION = Option(
    "publication",
    Kind.TEXT,
    "Existing publication of an administrator, used unchanged (default: pgsluice creates one)",
    "shop_changes",
)
BATCH_SIZE = Option(
    "batch-size",
    Kind.NUMBER,
    "Most stream messages in one batch (a message contains at most 256 KiB of changes)",
    "8192",
    "8192",
    minimum=1,
    maximum=1_000_000,
)
BATCH_BYTES = Option(
    "batch-bytes", Kind.SIZE, "Most bytes of stream messages in one batch, before compression", "64MiB", "64MiB", minimum=1
)


@settings
class ReplicatorSettings:
    """One replicator. ``copy`` is None when it only streams.

    ``tables`` holds patterns: ``table`` (in ``schema``), ``schema.table`` or ``schema.*``; empty means all of
    ``schema``. ``publish`` holds operations of the publication; ``publication`` is one that an administrator made, ""
    for the group's own. ``without_copy`` holds patterns of tables that are accepted although rows or changes of them
    are missing at the targets. ``until_lsn`` is "" (no end), "current" or an LSN's text. ``connect_timeout_s`` is how
    long the first session may take to begin. ``origin`` is pgoutput's: "any", or "none" for changes that no replication
    origin has. ``spark`` is for copying, as in WorkerSettings.
    """

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    connect_timeout_s: float = read(CONNECT_TIMEOUT)
    placement: PlacementSettings = part(PlacementSettings)
    source: PostgresSettings = part(PostgresSettings, database="source")
    schema: str = read(SCHEMA)
    tables: tuple[str, ...] = read(TABLES)
    publish: tuple[str, ...] = read(
        Option(
            "publish",
            Kind.LIST,
            "Operations to replicate",
            "insert,update,delete,truncate",
            "insert,update,delete,truncate",
            choices=OPERATIONS,
        )
    )
    publication: str = read(PUBLICATION)
    check_interval_s: float = read(
        Option(
            "check-interval",
            Kind.DURATION,
            "Interval at which the replicator compares the source's publication and tables with the replicated state",
            "60s",
            "60s",
            minimum=1,
        )
    )
    origin: str = read(
        Option(
            "origin",
            Kind.TEXT,
            "Replicate changes of any origin, or with 'none' only changes that no other replication wrote at the "
            "source (PostgreSQL 16 or later)",
            "none",
            "any",
            choices=ORIGINS,
        )
    )
    failover: bool = read(
        Option(
            "failover",
            Kind.SWITCH,
            "Make the slot a failover slot, which is synchronized to standbys (PostgreSQL 17 or later)",
            "true",
            "false",
        )
    )
    slot_timeout_s: float = read(
        Option(
            "slot-timeout",
            Kind.DURATION,
            "Longest wait for open transactions at the source when a slot is created",
            "1h",
            "10m",
            minimum=1,
        )
    )
    copy: CopySettings | None = part(CopySettings, when=is_copying)
    without_copy: tuple[str, ...] = read(
        Option(
            "without-copy",
            Kind.LIST,
            "Tables to continue with, although rows or changes are missing at the targets (patterns as in tables)",
            "orders",
        )
    )
    track_ddl: bool = read(
        Option(
            "track-ddl",
            Kind.SWITCH,
            "Capture schema changes at the source, so that workers can apply them to the targets",
            "true",
            "false",
        )
    )
    recopy_altered: bool = read(
        Option(
            "recopy-altered",
            Kind.SWITCH,
            "Resync a table after a schema change that gave rows new values without publishing them (with track-ddl and a copy)",
            "false",
            "true",
        )
    )
    until_lsn: str = read(
        Option(
            "until-lsn",
            Kind.LSN,
            "Publish up to this position (LSN), copy the tables that wait for it, and exit; 'current' is the position "
            "at the start or after the copy",
            "current",
            words=("current",),
        )
    )
    stream: StreamSettings = part(StreamSettings)
    metrics: MetricsSettings = part(MetricsSettings)
    spark: dict[str, str] = read(SPARK)
    retry: RetryPolicy = read(RETRY, then=retry_policy)
    alerts: AlertSettings = part(AlertSettings)
    IGNORED: ClassVar[tuple[Option, ...]] = pg_flo.RETRY_OPTIONS

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        mode, chosen_by = mode_of(values)
        if mode == "copy" and values.given("until-lsn"):
            yield UsageError(
                f"{values.named('until-lsn')} has no meaning with mode copy, {values.named(chosen_by)}",
                "remove it, or give 'mode: copy-and-stream'",
            )
        if is_copying(values):
            yield from cluster_problems(values, "nats-url", "host")


def _has_host(values: Values) -> bool:
    return values.given("host")


@settings
class StatusSettings:
    """The settings of ``pgsluice status``. ``source`` is None when no source was given: then only the broker is read."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    source: PostgresSettings | None = part(PostgresSettings, database="source", when=_has_host)


@settings
class SourceTablesSettings:
    """The source and tables that a group publishes; ``tables``, ``schema`` and ``publication`` are those of
    ReplicatorSettings."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    source: PostgresSettings = part(PostgresSettings, database="source")
    schema: str = read(SCHEMA)
    tables: tuple[str, ...] = read(TABLES)
    publication: str = read(PUBLICATION)


@settings
class DropSettings:
    """The places where ``pgsluice drop`` removes the group's objects; None: they stay."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings | None = part(NatsSettings)
    source: PostgresSettings | None = part(PostgresSettings, database="source")


@settings
class GroupSettings:
    """The access to a group's objects in NATS."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)


@settings
class BrokerSetupSettings:
    """Settings of the commands with which an administrator of NATS prepares it for a group."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    stream: StreamSettings = part(StreamSettings)


@settings
class SubscriptionGroupSettings:
    """Settings of the commands about a group's subscriptions."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    subscribing: SubscribingSettings = part(SubscribingSettings)


@settings
class SourceGroupSettings:
    """The access to a group's objects at the source."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    source: PostgresSettings = part(PostgresSettings, database="source")


@settings
class WorkerSettings:
    """Settings of every worker, independent of its sink. ``until_sequence`` is "" (no end), "current" or a number's
    text.

    ``batch_messages`` and ``batch_bytes`` bound one batch, unless a single transaction is larger. ``spark`` holds
    Spark's own settings under their full names; it is kept out of ``repr`` because storage credentials are among them.
    ``source`` is what this worker reads in Kafka, None for streams that another program publishes. ``rules_file`` and
    ``routing_file`` are paths, "" without. ``connect_timeout_s`` is for the first connection to NATS.
    """

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    connect_timeout_s: float = read(CONNECT_TIMEOUT)
    placement: PlacementSettings = part(PlacementSettings)
    SOURCE: ClassVar[Option] = Option(
        "worker-source",
        Kind.TEXT,
        "Source of the changes: the group's replicator, or Kafka topics that another group's worker writes",
        SOURCE_KAFKA,
        "replicator",
        choices=("replicator", SOURCE_KAFKA),
    )
    source: KafkaSourceSettings | None = part(KafkaSourceSettings, when=reads_kafka)
    metrics: MetricsSettings = part(MetricsSettings)
    name: str = read(
        Option(
            "name",
            Kind.TEXT,
            "Name of this worker and of its position in the stream (default: the kind of its sink)",
            "postgres",
            convert=check_worker_name,
        )
    )
    batch_messages: int = read(BATCH_SIZE)
    batch_bytes: int = read(BATCH_BYTES)
    rules_file: str = read(RULES_FILE)
    routing_file: str = read(ROUTING_FILE)
    ddl: str = read(
        Option(
            "ddl",
            Kind.TEXT,
            "Action for schema changes (with the replicator's track-ddl): 'apply' them, 'stop' for an operator, or 'ignore' them",
            "stop",
            "apply",
            choices=("apply", "stop", "ignore"),
        )
    )
    ddl_policy: dict[str, str] = read(
        Option(
            "ddl-policy",
            Kind.PAIRS,
            "Action for a kind of schema change, for all tables or a pattern ('shop.* drop-table=drop'); repeatable",
            "drop-column=keep",
        )
    )
    new_columns: str = read(
        Option(
            "new-columns",
            Kind.TEXT,
            "Action for a new column that no rule covers, in a table whose rules hide other columns: 'stop' for an "
            "operator, 'hold' the column back until 'pgsluice ddl accept', or 'pass' it",
            "hold",
            "stop",
            choices=("pass", "hold", "stop"),
        )
    )
    max_dead_letters: int = read(
        Option(
            "max-dead-letters",
            Kind.NUMBER,
            "Most dead letters; one more stops the worker. 0: stop at the first",
            "1000",
            "1000",
            minimum=0,
        )
    )
    until_sequence: str = read(
        Option(
            "until-sequence",
            Kind.NUMBER,
            "Apply up to this stream sequence and exit; 'current' is the last sequence at the start",
            "current",
            minimum=1,
            words=("current",),
        )
    )
    spark: dict[str, str] = read(SPARK)
    retry: RetryPolicy = read(RETRY, then=retry_policy)
    alerts: AlertSettings = part(AlertSettings)

    def named(self, default: str) -> WorkerSettings:
        """Returns the settings with a name: ``default`` if none was given."""
        return self if self.name else replace(self, name=default)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        return cluster_problems(values, "nats-url")


COMMANDS: dict[str, type[Any]] = {
    "replicator": ReplicatorSettings,
    "status": StatusSettings,
    "pause": StatusSettings,
    "resume": StatusSettings,
    "stop": StatusSettings,
    "start": StatusSettings,
    "lag": GroupSettings,
    "drop": DropSettings,
    "rules": SourceTablesSettings,
    "ddl": SourceTablesSettings,
    "ddl log": GroupSettings,
    "ddl accept": GroupSettings,
    "dead": GroupSettings,
    "tables": GroupSettings,
    "run": RunPipelineSettings,
    "runs": RunsSettings,
    "schedule": ScheduleSettings,
    "steps": StepsSettings,
    "forget": GroupSettings,
    "subscriptions": SubscriptionGroupSettings,
    "messages": GroupSettings,
    "trace": TraceSettings,
    "server": ServerSettings,
    "server --run": RunSettings,
    "plan": DocumentSettings,
    "apply": DocumentSettings,
    "export": DocumentSettings,
    "token": TokenSettings,
    "drop --nats-only": GroupSettings,
    "drop --source-only": SourceGroupSettings,
    "worker": WorkerSettings,
}
"""The settings of each command; a sink reads its own in addition to those of ``worker``."""
