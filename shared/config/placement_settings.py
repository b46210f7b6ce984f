"""Regions where a process may work."""

from __future__ import annotations

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option


@settings
class PlacementSettings:
    """``domain`` is "" for the domain that the NATS server reports; ``allow_domains`` is empty to allow all."""

    domain: str = read(
        Option("domain", Kind.TEXT, "Domain of this process (default: the JetStream domain of its NATS server)", "aws-a")
    )
    allow_domains: tuple[str, ...] = read(
        Option("allow-domains", Kind.LIST, "Domains in which this process is allowed to work (default: any)", "aws-a,gcp-b")
    )


ANYWHERE = PlacementSettings("", ())
