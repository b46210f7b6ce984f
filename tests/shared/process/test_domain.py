"""A process works where it may, and says where it may not."""

from __future__ import annotations

import asyncio

import pytest

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.placement_settings import PlacementSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.process.domain import check_domain
from tests.servers import NatsServer


def check(server: NatsServer, domain: str, *allowed: str) -> None:
    async def ask() -> None:
        async with connected(server.settings(), "test") as client:
            check_domain(PlacementSettings(domain, allowed), client)

    asyncio.run(ask())


def test_a_process_works_in_the_domains_that_were_named(nats_server: NatsServer) -> None:
    check(nats_server, "")
    check(nats_server, "anywhere")
    check(nats_server, "gcp-b", "aws-a", "gcp-b")
    with pytest.raises(TerminalError, match=r"DomainUnavailable: this process is in domain 'azure-c', and .* aws-a, gcp-b"):
        check(nats_server, "azure-c", "aws-a", "gcp-b")


def test_a_process_that_does_not_know_where_it_is_does_not_work(nats_server: NatsServer) -> None:
    with pytest.raises(TerminalError, match=r"DomainUnavailable: .* the domain of this process is not configured"):
        check(nats_server, "", "aws-a")
