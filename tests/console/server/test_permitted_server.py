"""``pgsluice server`` with a NATS user that has the permissions that ``pgsluice nats permissions --server`` prints."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pgsluice.shared.broker.connection import connected
from tests.console.server.served import Served
from tests.recorded_group import record
from tests.servers.permitted_nats import PermittedNats
from tests.waiting import wait_until


def test_a_server_shows_a_group_and_keeps_its_document_with_the_printed_permissions(group: str, tmp_path: Path) -> None:
    with PermittedNats({group: ("--server",)}) as nats:
        nats.create(group, "--server")

        async def prepare() -> None:
            async with connected(nats.settings_of(group), "test") as client:
                await record(client, group)

        asyncio.run(prepare())
        keys = {name: value for name, value in nats.keys(group).items() if name not in ("group", "nats-url")}
        with Served(nats.url, tmp_path, "--run", **keys) as server, server.client() as client:
            shown = wait_until(lambda: client.get("/groups").json()["groups"], what="the group")
            assert [each["group"] for each in shown] == [group]
            stored = client.put(f"/groups/{group}/document", json={"yaml": f"group: {group}\n"})
            assert stored.status_code in (200, 201), stored.text
            with server.client(server.token("looking")) as viewer:
                assert viewer.put(f"/groups/{group}/document", json={"yaml": ""}).status_code == 403
            assert client.get("/audit").json()["entries"]
        assert nats.violations() == []
