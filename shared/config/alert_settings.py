"""Whom the processes of a group tell what is wrong, and when."""

from __future__ import annotations

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option


@settings
class AlertSettings:
    """``webhook`` is a URL, ``command`` a program with its arguments; both are empty when nobody is told. ``token`` and
    ``ca_file`` are "" without."""

    webhook: str = read(
        Option(
            "alert-webhook",
            Kind.URL,
            "Where alerts are posted as JSON",
            "https://hooks.example.com/alerts",
            secret=True,
        )
    )
    token: str = read(
        Option(
            "alert-webhook-token",
            Kind.TEXT,
            "Bearer token of these requests, sent as the header Authorization",
            "${PGSLUICE_ALERT_WEBHOOK_TOKEN:-}",
            secret=True,
            in_file="the token",
        )
    )
    ca_file: str = read(
        Option(
            "alert-webhook-ca",
            Kind.FILE,
            "Certificates that vouch for that receiver (default: those that the machine trusts)",
            "/etc/pgsluice/alerts-ca.pem",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "alert-webhook-allow-hosts",
            Kind.LIST,
            "Hosts that alerts may be posted to: names, addresses, networks; none but public addresses when it is not given",
            "hooks.example.com,10.1.0.0/16",
        )
    )
    command: tuple[str, ...] = read(
        Option(
            "alert-command",
            Kind.LIST,
            "Program, with its arguments, that is run for each alert; the alert is its standard input, as JSON",
            "/usr/local/bin/page,--team,data",
        )
    )
    lag_s: float = read(
        Option("alert-lag", Kind.DURATION, "How far a worker may be behind before it is an alert", "10m", "5m", minimum=0)
    )
    for_s: float = read(
        Option(
            "alert-for",
            Kind.DURATION,
            "How long what may pass by itself lasts before it is an alert",
            "5m",
            "1m",
            minimum=0,
        )
    )
    repeat_s: float = read(
        Option("alert-repeat", Kind.DURATION, "After how long an alert that goes on is sent again", "1h", "4h", minimum=1)
    )
    interval_s: float = read(
        Option(
            "alert-interval",
            Kind.DURATION,
            "How often to look whether something is wrong",
            "30s",
            "10s",
            minimum=1,
            maximum=600,
        )
    )
