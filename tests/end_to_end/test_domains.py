"""A process that is started where it may not work ends before it does anything."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.servers import Database, NatsServer, PgsluiceProcess

CANNOT_SUCCEED = 70


@pytest.mark.parametrize("role", [["replicator"], ["worker", "stdout"]])
def test_a_process_in_another_domain_ends_with_70(
    role: list[str], source_database: Database, nats_server: NatsServer, group: str
) -> None:
    keys = configuration(group, source_database, None, nats_server, domain="azure-c", **{"allow-domains": ["aws-a", "gcp-b"]})
    with PgsluiceProcess(*role, config=keys) as process:
        assert process.wait() == CANNOT_SUCCEED, process.log()
        assert "DomainUnavailable: this process is in domain 'azure-c', and allow-domains is aws-a, gcp-b" in process.log()
    assert source_database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert source_database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
