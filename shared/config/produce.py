"""Typed settings out of checked values. Nothing is validated here and nothing can fail: ``load`` did both."""

from __future__ import annotations

import os

from pgsluice.shared.config.settings import (
    CopySettings,
    DropSettings,
    FileSinkSettings,
    GroupSettings,
    LogSettings,
    NatsSettings,
    PostgresSettings,
    PostgresSinkSettings,
    ReplicatorSettings,
    SourceTablesSettings,
    StatusSettings,
    StreamSettings,
    WebhookSinkSettings,
    WorkerSettings,
)
from pgsluice.shared.config.values import Values


def replicator_settings(values: Values) -> ReplicatorSettings:
    return ReplicatorSettings(
        group=values.text("group"),
        source=_postgres(values),
        nats=_nats(values),
        stream=StreamSettings(
            replicas=values.number("stream-replicas"),
            placement_tags=values.names("stream-placement-tags"),
            max_bytes=values.number("stream-max-bytes") if values.given("stream-max-bytes") else 0,
            retention_s=values.seconds("retention"),
        ),
        log=log_settings(values),
        schema=values.text("schema"),
        tables=values.names("tables"),
        publish=values.names("publish"),
        publication=values.text("publication"),
        without_copy=values.names("without-copy"),
        check_interval_s=values.seconds("check-interval"),
        origin=values.text("origin"),
        failover=values.switch("failover"),
        slot_timeout_s=values.seconds("slot-timeout"),
        until_lsn=values.text("until-lsn"),
        copy=_copy_settings(values),
        connect_timeout_s=values.seconds("connect-timeout"),
    )


def _copy_settings(values: Values) -> CopySettings | None:
    """None when nothing is to be copied."""
    if not (values.switch("copy") or values.switch("copy-and-stream")):
        return None
    return CopySettings(
        then_stream=values.switch("copy-and-stream"),
        workers_per_table=values.number("max-copy-workers-per-table"),
        connections=values.number("max-copy-connections"),
        range_bytes=values.number("copy-range-bytes"),
        retry_errored=values.switch("retry-errored"),
        recopy=values.names("recopy"),
        spark=values.pairs("spark"),
    )


def status_settings(values: Values) -> StatusSettings:
    source = _postgres(values) if values.given("host") else None
    return StatusSettings(group=values.text("group"), source=source, nats=_nats(values), log=log_settings(values))


def source_tables_settings(values: Values) -> SourceTablesSettings:
    return SourceTablesSettings(
        group=values.text("group"),
        source=_postgres(values),
        schema=values.text("schema"),
        tables=values.names("tables"),
        publication=values.text("publication"),
    )


def drop_settings(values: Values, *, source: bool, nats: bool) -> DropSettings:
    """``source`` and ``nats``: whether something is removed there."""
    return DropSettings(
        group=values.text("group"),
        source=_postgres(values) if source else None,
        nats=_nats(values) if nats else None,
        log=log_settings(values),
    )


def group_settings(values: Values) -> GroupSettings:
    return GroupSettings(group=values.text("group"), nats=_nats(values), log=log_settings(values))


def worker_settings(values: Values, sink: str) -> WorkerSettings:
    """``sink`` is the sink's kind, the name of a worker that was given none."""
    return WorkerSettings(
        group=values.text("group"),
        name=values.text("name") or sink,
        nats=_nats(values),
        log=log_settings(values),
        until_sequence=values.text("until-sequence"),
        batch_messages=values.number("batch-size"),
        batch_bytes=values.number("batch-bytes"),
        rules_file=values.text("rules-config"),
        routing_file=values.text("routing-config"),
        max_dead_letters=values.number("max-dead-letters"),
        spark=values.pairs("spark"),
        connect_timeout_s=values.seconds("connect-timeout"),
    )


def postgres_sink_settings(values: Values) -> PostgresSinkSettings:
    return PostgresSinkSettings(
        target=_postgres(values, "target-"),
        sync_schema=values.switch("target-sync-schema"),
        disable_foreign_keys=values.switch("target-disable-foreign-keys"),
        sync_sequences=values.switch("target-sync-sequences"),
        lock_timeout_s=values.seconds("target-lock-timeout"),
    )


def file_sink_settings(values: Values) -> FileSinkSettings:
    file_format = values.text("format")
    return FileSinkSettings(
        directory=os.path.abspath(os.path.expanduser(values.text("file-output-dir"))),
        format=file_format,
        compression=values.text("file-compression") or ("zstd" if file_format == "parquet" else "none"),
        rotate_bytes=values.number("file-rotate-bytes"),
        rotate_age_s=values.seconds("file-rotate-age"),
        transactions=values.switch("transactions"),
    )


def webhook_sink_settings(values: Values) -> WebhookSinkSettings:
    return WebhookSinkSettings(
        url=values.text("webhook-url"),
        format=values.text("webhook-format"),
        batch_size=values.number("webhook-batch-size"),
        batch_bytes=values.number("webhook-batch-bytes"),
        connections=values.number("webhook-connections"),
        timeout_s=values.seconds("webhook-timeout"),
        secret=values.text("webhook-secret"),
        token=values.text("webhook-token"),
        headers=values.pairs("webhook-headers"),
        ca_file=values.text("webhook-ca"),
        allow_hosts=values.names("webhook-allow-hosts"),
        transactions=values.switch("transactions"),
        shape=line_shape(values),
    )


def line_shape(values: Values) -> str:
    """How stdout and webhook write a change: "json" or "pg-flo"."""
    return "pg-flo" if values.text("format") == "pg-flo" else "json"


def log_settings(values: Values) -> LogSettings:
    return LogSettings(level=values.text("log-level").upper(), format=values.text("log-format"))


def _postgres(values: Values, prefix: str = "") -> PostgresSettings:
    return PostgresSettings(
        host=values.text(prefix + "host"),
        port=values.number(prefix + "port"),
        dbname=values.text(prefix + "dbname"),
        user=values.text(prefix + "user"),
        password=values.text(prefix + "password"),
        sslmode=values.text(prefix + "sslmode"),
        sslrootcert=values.text(prefix + "sslrootcert"),
        sslcert=values.text(prefix + "sslcert"),
        sslkey=values.text(prefix + "sslkey"),
    )


def _nats(values: Values) -> NatsSettings:
    return NatsSettings(
        url=values.text("nats-url"),
        user=values.text("nats-user"),
        password=values.text("nats-password"),
        token=values.text("nats-token"),
        credentials_file=values.text("nats-credentials"),
        tls_ca=values.text("nats-tls-ca"),
        tls_cert=values.text("nats-tls-cert"),
        tls_key=values.text("nats-tls-key"),
    )
