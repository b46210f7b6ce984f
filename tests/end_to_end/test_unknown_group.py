"""A worker whose group does not exist, most often because its name is misspelt."""

from __future__ import annotations

from tests.servers import NatsServer
from tests.servers.program import PgsluiceProcess
from tests.state_bucket import ensure_bucket


def test_a_worker_of_an_unknown_group_suspects_a_typo_and_names_the_groups_there_are(nats_server: NatsServer, group: str) -> None:
    ensure_bucket(nats_server.settings(), group)
    config = {"group": f"{group}x", "nats-url": nats_server.settings().url}
    with PgsluiceProcess("worker", "stdout", config=config) as worker:
        worker.wait_for_log("is misspelt")
        line = next(line for line in worker.log().splitlines() if "is misspelt" in line)
        assert f"{group}x" in line
        assert f" {group}" in line.partition("groups on this NATS:")[2].replace(",", " ")
        worker.terminate()
        worker.wait()
