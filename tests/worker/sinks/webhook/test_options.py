"""What the webhook sink is told."""

from __future__ import annotations

from pathlib import Path

from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.worker.sinks.webhook.options import WebhookSinkSettings
from tests.configuration import load
from tests.worker.sinks.line_settings import line_settings


def test_settings_of_the_webhook_sink_hold_what_was_given(tmp_path: Path) -> None:
    content = (
        "webhook-url: https://a/b\nwebhook-format: lines\nwebhook-timeout: 5s\nwebhook-token: t\nwebhook-headers: {X-A: b}\n"
        "webhook-allow-hosts: [a, 10.0.0.0/8]\n"
    )
    settings = config.make(WebhookSinkSettings, load(tmp_path, content, WorkerSettings, WebhookSinkSettings))
    assert settings == WebhookSinkSettings(
        url="https://a/b",
        format="lines",
        batch_size=1000,
        batch_bytes=1 << 20,
        connections=8,
        timeout_s=5.0,
        secret="",
        token="t",
        headers={"X-A": "b"},
        ca_file="",
        allow_hosts=("a", "10.0.0.0/8"),
        lines=line_settings(),
    )
    assert "https://a/b" not in repr(settings)
