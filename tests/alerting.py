"""Settings of processes that tell nobody, or a receiver of the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pgsluice.shared.config.alert_settings import AlertSettings

NO_ALERTS = AlertSettings(
    webhook="", token="", ca_file="", allow_hosts=(), command=(), lag_s=300.0, for_s=60.0, repeat_s=14_400.0, interval_s=10.0
)


def alerts_to(url: str, **changed: Any) -> AlertSettings:
    """Looks ten times a second, and tells at once what has lasted for no time."""
    quick = replace(NO_ALERTS, webhook=url, allow_hosts=("127.0.0.0/8",), for_s=0.0, interval_s=0.1)
    return replace(quick, **changed)
