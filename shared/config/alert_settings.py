"""Recipients and timing of a group's alerts."""

from __future__ import annotations

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option


@settings
class AlertSettings:
    """``webhook`` is a URL, ``command`` a program with its arguments; both are empty when alerts are off. ``token`` and
    ``ca_file`` are "" without."""

    webhook: str = read(
        Option(
            "alert-webhook",
            Kind.URL,
            "URL that receives alerts as JSON, by HTTP POST",
            "https://hooks.example.com/alerts",
            secret=True,
        )
    )
    token: str = read(
        Option(
            "alert-webhook-token",
            Kind.TEXT,
            "Bearer token for alert-webhook, sent in the Authorization header",
            "${PGSLUICE_ALERT_WEBHOOK_TOKEN:-}",
            secret=True,
            in_file="the token",
        )
    )
    ca_file: str = read(
        Option(
            "alert-webhook-ca",
            Kind.FILE,
            "CA certificates for alert-webhook (default: those of the machine)",
            "/etc/pgsluice/alerts-ca.pem",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "alert-webhook-allow-hosts",
            Kind.LIST,
            "Allowed hosts for alert-webhook: names, addresses, networks (default: public addresses only)",
            "hooks.example.com,10.1.0.0/16",
        )
    )
    command: tuple[str, ...] = read(
        Option(
            "alert-command",
            Kind.LIST,
            "Program with arguments to run for each alert, which it reads as JSON from standard input",
            "/usr/local/bin/page,--team,data",
        )
    )
    lag_s: float = read(Option("alert-lag", Kind.DURATION, "Worker lag that raises an alert", "10m", "5m", minimum=0))
    for_s: float = read(
        Option(
            "alert-for",
            Kind.DURATION,
            "Time that a possibly temporary problem must last before it raises an alert",
            "5m",
            "1m",
            minimum=0,
        )
    )
    repeat_s: float = read(
        Option(
            "alert-repeat", Kind.DURATION, "Time after which an alert that is still active is sent again", "1h", "4h", minimum=1
        )
    )
    interval_s: float = read(
        Option(
            "alert-interval",
            Kind.DURATION,
            "Interval between checks for problems",
            "30s",
            "10s",
            minimum=1,
            maximum=600,
        )
    )
