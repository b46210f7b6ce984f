"""The options of the Postgres sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pgsluice.shared.config import pg_flo
from pgsluice.shared.config.cluster_problems import address_problems
from pgsluice.shared.config.connections import PostgresSettings
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink_registry import SinkKind


@settings
class PostgresSinkSettings:
    """``sync_schema``: create target tables that are missing. ``disable_foreign_keys``: apply under
    ``session_replication_role = replica``, as Postgres's own apply worker does; None: where the role may.
    ``sync_sequences``: keep the target's sequences ahead of the rows. ``lock_timeout_s`` bounds each wait for a lock.
    ``on_missing_row``: ``merge.missing_rows.OnMissing``."""

    target: PostgresSettings = part(PostgresSettings, prefix="target-", database="target")
    sync_schema: bool = read(
        Option(
            "target-sync-schema",
            Kind.SWITCH,
            "Create missing target tables (pg_flo copied the whole source schema with pg_dump, and not by default)",
            "false",
            "true",
        )
    )
    disable_foreign_keys: bool | None = read(
        Option(
            "target-disable-foreign-keys",
            Kind.SWITCH,
            "Apply with session_replication_role = replica, so that the target's foreign keys and ordinary triggers do "
            "not fire (default: true if the target's user is allowed to set it)",
            "true",
        ),
        otherwise=lambda _: None,
    )
    sync_sequences: bool = read(
        Option(
            "target-sync-sequences",
            Kind.SWITCH,
            "Keep the sequences of the target's serial and identity columns ahead of the rows, so that it can take over",
            "true",
            "false",
        )
    )
    lock_timeout_s: float = read(
        Option(
            "target-lock-timeout",
            Kind.DURATION,
            "Longest wait for a lock at the target; then the worker releases its locks and retries the batch",
            "30s",
            "30s",
            minimum=1,
        )
    )
    on_missing_row: str = read(
        Option(
            "on-missing-row",
            Kind.TEXT,
            "Action for an update or delete that matches no row, although no filter or route excludes rows: count it, "
            "store it as a dead letter, or stop the worker",
            "stop",
            "count",
            choices=("count", "dead-letter", "stop"),
        )
    )
    IGNORED: ClassVar[tuple[Option, ...]] = pg_flo.SCHEMA_DUMP_OPTIONS

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        return address_problems(values, "target-host")


SINK = SinkKind(
    settings=PostgresSinkSettings,
    sink="pgsluice.worker.sinks.postgres.sink:PostgresSink",
    findings="pgsluice.worker.sinks.postgres.findings:find",
    summary="Apply the changes to a PostgreSQL database.",
    help="Apply the changes to a PostgreSQL database; each target transaction contains whole source transactions.",
)
