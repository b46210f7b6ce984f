"""Servers at an address that other machines reach, and these machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import NatsServer, PostgresServer
from tests.servers.machines import MachineNetwork, MachinesUnavailableError


@pytest.fixture(scope="package")
def network() -> Iterator[MachineNetwork]:
    try:
        made = MachineNetwork()
    except MachinesUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture(scope="package")
def postgres(network: MachineNetwork) -> Iterator[PostgresServer]:
    with PostgresServer(host=network.address) as server:
        yield server


@pytest.fixture(scope="package")
def nats_server(network: MachineNetwork) -> Iterator[NatsServer]:
    with NatsServer(host=network.address) as server:
        yield server
