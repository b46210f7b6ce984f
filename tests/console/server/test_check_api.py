"""A check over the API: of a group whose document says where its servers are."""

from __future__ import annotations

import json

from tests.console.server.served import PASSWORD, Served
from tests.replicated_group import Group
from tests.servers import NatsServer


def document(group: Group, nats: NatsServer, variable: str = "SOURCE_PASSWORD") -> str:
    settings = group.source.settings
    options = {
        "group": group.name,
        "nats-url": nats.url,
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.dbname,
        "user": settings.user,
        "password": f"${{{variable}}}",
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in options.items())


def test_findings_come_with_the_sql_that_cures_them(served: Served, replication: Group, nats_server: NatsServer) -> None:
    replication.source.execute("CREATE TABLE keyless (v text)")
    with served.client() as client:
        path = f"/groups/{replication.name}"
        assert client.post(f"{path}/check").status_code == 404
        client.put(f"{path}/document", json={"yaml": document(replication, nats_server)})
        found = client.post(f"{path}/check")
        assert found.status_code == 200
        findings = [each for each in found.json()["report"]["findings"] if "keyless" in each["fact"]]
        assert "error" in {each["severity"] for each in findings}
        assert "keyless" in found.json()["script"]
        assert PASSWORD not in found.text
    replication.source.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    with served.client() as client:
        again = client.post(f"/groups/{replication.name}/check").json()["report"]["findings"]
        assert not [each for each in again if "keyless" in each["fact"] and each["severity"] == "error"]


def test_a_variable_that_the_server_lacks_is_named(served: Served, replication: Group, nats_server: NatsServer) -> None:
    with served.client() as client:
        client.put(f"/groups/{replication.name}/document", json={"yaml": document(replication, nats_server, "SECRET_OF_NOBODY")})
        refused = client.post(f"/groups/{replication.name}/check")
        assert (refused.status_code, "SECRET_OF_NOBODY" in refused.text) == (422, True)
