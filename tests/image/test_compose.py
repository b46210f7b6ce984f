"""Runs docker/compose.yaml unchanged, in containers: a group copies, streams, survives kills and stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.image.compose_group import DEADLINE_S, ROLES, SERVICES, ComposeGroup
from tests.image.engine import IMAGE, ready
from tests.image.previous import previous_image
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

GRACE_S = 60.0
UNITS = {"Mi": 2**20, "Gi": 2**30}


def limits() -> dict[str, int]:
    """Returns each role's memory limit of the Helm chart, in bytes."""
    values = yaml.safe_load((REPOSITORY / "deploy" / "helm" / "pgsluice" / "values.yaml").read_text())
    texts = zip(ROLES, (values["replicator"]["resources"], values["workerResources"]), strict=True)
    return {role: int(text["limits"]["memory"][:-2]) * UNITS[text["limits"]["memory"][-2:]] for role, text in texts}


@pytest.fixture(scope="module")
def group() -> Iterator[ComposeGroup]:
    with ComposeGroup(ready(with_servers=True), IMAGE, limits()) as started:
        yield started


def test_rows_are_copied_and_streamed(group: ComposeGroup) -> None:
    group.wait_for_health("source")
    with group.load():
        wait_until(lambda: "customers" in group.sql("target", "SELECT relname FROM pg_class"), deadline_s=DEADLINE_S)
    group.sql("source", "INSERT INTO customers (name) VALUES ('Ada')")
    assert int(group.wait_until_equal().split("|")[0]) > 20


def test_every_container_becomes_healthy(group: ComposeGroup) -> None:
    for service in SERVICES:
        group.wait_for_health(service)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_rights_and_writes_to_temporary_places_only(group: ComposeGroup, role: str) -> None:
    status = dict(line.split(":", 1) for line in group.execute(role, "cat", "/proc/1/status").splitlines())
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
    assert status["NoNewPrivs"].strip() == "1"
    assert set(status["Uid"].split()) == {"10001"}
    script = "for place; do touch $place/x 2> /dev/null && echo $place; done; true"
    places = ("/", "/home/pgsluice", "/opt/pgsluice", "/tmp", "/dev/shm")  # podman also makes /var/tmp
    assert set(group.execute(role, "sh", "-c", script, "sh", *places).split()) == {"/tmp", "/dev/shm"}
    environment = group.engine.inspect(group.container(role))["Config"]["Env"]
    assert not [each.partition("=")[0] for each in environment if "PASSWORD=" in each], "a secret is in the environment"


@pytest.mark.parametrize(("server", "role"), [("source", "replicator"), ("target", "worker"), ("nats", "replicator")])
def test_a_role_is_unhealthy_while_its_server_is_away(group: ComposeGroup, server: str, role: str) -> None:
    """Inserts a row first, because a worker notices a missing target only when it applies a change."""
    group.compose("stop", server)
    try:
        if server != "source":
            group.sql("source", "INSERT INTO customers (name) VALUES ('meanwhile')")
        group.wait_for_health(role, "unhealthy")
    finally:
        group.compose("start", server)
    for service in (server, *ROLES):
        group.wait_for_health(service)
    group.wait_until_equal()


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_is_lost_when_a_container_is_killed_under_load(group: ComposeGroup, service: str) -> None:
    with group.load():
        group.kill(service)
    group.wait_until_equal()
    group.wait_for_health(service)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_stops_with_0_within_its_grace_period(group: ComposeGroup, role: str) -> None:
    with group.load():
        exit_code, took_s = group.stop(role)
        assert exit_code == 0, group.log(role)[-4000:]
        assert took_s < GRACE_S
        group.compose("start", role)
    group.wait_until_equal()


def test_no_role_exceeded_the_memory_that_the_chart_gives_it(group: ComposeGroup) -> None:
    for role, limit in limits().items():
        assert group.engine.inspect(group.container(role))["HostConfig"]["Memory"] == limit
        assert not group.state(role)["OOMKilled"]


def test_a_group_of_the_previous_image_goes_on_with_this_one_role_by_role() -> None:
    engine = ready(with_servers=True)
    with ComposeGroup(engine, previous_image(engine), limits()) as group:
        group.wait_for_health("source")
        with group.load():
            group.wait_for_health("worker")
        group.wait_until_equal()
        for role in ROLES:
            with group.load():
                group.use(IMAGE, role)
                group.compose("rm", "--stop", "--force", role)
                group.compose("up", "--detach", "--no-build", role)
                group.wait_for_health(role)
            group.wait_until_equal()
