"""Settings of a worker that is never started: for sinks alone."""

from __future__ import annotations

from pgsluice.shared.config.placement_settings import ANYWHERE
from pgsluice.shared.config.settings import LogSettings, NatsSettings, WorkerSettings
from pgsluice.shared.process.retrying import DEFAULT_POLICY
from tests.alerting import NO_ALERTS
from tests.endpoints import NO_METRICS

NO_NATS = NatsSettings.of_url("")


def worker_settings(group: str, nats: NatsSettings = NO_NATS, name: str = "sink") -> WorkerSettings:
    return WorkerSettings(
        group=group,
        log=LogSettings("INFO", "text"),
        nats=nats,
        connect_timeout_s=60,
        placement=ANYWHERE,
        source=None,
        metrics=NO_METRICS,
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
        retry=DEFAULT_POLICY,
        alerts=NO_ALERTS,
    )
