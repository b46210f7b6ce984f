"""Settings of a worker that is never started: for sinks alone."""

from __future__ import annotations

from pgsluice.shared.config.settings import LogSettings, NatsSettings, WorkerSettings

NO_NATS = NatsSettings("", "", "", "", "", "", "", "")


def worker_settings(group: str, nats: NatsSettings = NO_NATS, name: str = "sink") -> WorkerSettings:
    return WorkerSettings(
        group=group,
        log=LogSettings("INFO", "text"),
        nats=nats,
        connect_timeout_s=60,
        name=name,
        batch_messages=1,
        batch_bytes=1,
        rules_file="",
        routing_file="",
        ddl="apply",
        ddl_policy={},
        new_columns="stop",
        max_dead_letters=1000,
        until_sequence="",
        spark={},
    )
