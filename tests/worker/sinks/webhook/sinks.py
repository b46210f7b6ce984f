"""Webhook sinks on a test's receiver, which pause less between attempts than people have them do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Pauses
from pgsluice.worker.sinks.webhook.options import WebhookSinkSettings
from pgsluice.worker.sinks.webhook.sink import WebhookSink
from tests.servers.http_server import HttpServer
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings

NewSink = Callable[..., WebhookSink]

SHORT_PAUSES = Pauses(0.1, 2.0, least=1.0)

SECRET = "whsec_" + "c2VjcmV0" * 6


def webhook_settings(receiver: HttpServer | str, **changed: Any) -> WebhookSinkSettings:
    """``receiver`` is a server or a URL."""
    settings: dict[str, Any] = {
        "url": receiver if isinstance(receiver, str) else receiver.url,
        "format": "array",
        "batch_size": 1000,
        "batch_bytes": 1 << 20,
        "connections": 4,
        "timeout_s": 20.0,
        "secret": "",
        "token": "",
        "headers": {},
        "ca_file": "",
        "allow_hosts": ("127.0.0.1",),
    }
    of_lines = {name: changed.pop(name) for name in ("transactions", "shape", "column_ids") if name in changed}
    return WebhookSinkSettings(lines=line_settings(**of_lines), **settings | changed)


def new_sink(
    nats: NatsSettings, group: str, receiver: HttpServer | str, pauses: Pauses = SHORT_PAUSES, **changed: Any
) -> WebhookSink:
    settings = replace(worker_settings(group, nats), retry=DEFAULT_POLICY._replace(webhook=pauses))
    return WebhookSink(settings, webhook_settings(receiver, **changed))
