"""Settings shared by the worker that serves subscriptions, and the commands that manage them."""

from __future__ import annotations

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option

OPTIONS = "subscriptions"
"""Prefix of the names of the options."""

EVENTS = ("insert", "update", "delete", "truncate")
"""The kinds of events."""


@settings
class SubscriptionSettings:
    """``secret`` is "" for none: then no user can subscribe. ``ca_file`` is "" for the machine's trusted authorities."""

    secret: str = read(
        Option(
            "subscriptions-secret",
            Kind.TEXT,
            "Secret (whsec_ and base64) from which each subscription's secret is derived; during a rotation two, "
            "separated by a space",
            "${PGSLUICE_SUBSCRIPTIONS_SECRET:-}",
            secret=True,
            in_file="the secret",
        )
    )
    timeout_s: float = read(
        Option("subscriptions-timeout", Kind.DURATION, "Timeout of a request", "5s", "10s", minimum=1, maximum=3600)
    )
    ca_file: str = read(
        Option(
            "subscriptions-ca",
            Kind.FILE,
            "CA certificates for receivers (default: those of the machine)",
            "/etc/pgsluice/subscriptions-ca.pem",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "subscriptions-allow-hosts",
            Kind.LIST,
            "Allowed hosts of receivers: names, addresses, networks (default: public addresses only)",
            "hooks.example.com,10.1.0.0/16",
        )
    )


@settings
class SubscribingSettings:
    """Settings of the commands that manage subscriptions."""

    common: SubscriptionSettings = part(SubscriptionSettings)
    per_owner: int = read(
        Option(
            "subscriptions-per-owner",
            Kind.NUMBER,
            "Most subscriptions of one owner in a group",
            "1000",
            "100",
            minimum=1,
            maximum=1_000_000,
        )
    )
