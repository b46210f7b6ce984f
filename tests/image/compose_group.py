"""The group of docker/compose.yaml, in containers, with a load on its source."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.image.engine import Engine
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until

DOCKER = REPOSITORY / "docker"
ROLES = ("replicator", "worker")
SERVICES = ("source", "target", "nats", *ROLES)
SECRETS = ("postgres-password", "source-password", "target-password", "nats-password")

DEADLINE_S = 300.0
"""The longest wait for anything that five containers do on a busy machine."""

CHANGE = """
BEGIN;
INSERT INTO customers (name) SELECT 'customer ' || n FROM generate_series(1, 20) n;
INSERT INTO orders (customer_id, total) SELECT max(id), 1.25 * n FROM customers, generate_series(1, 20) n GROUP BY n;
UPDATE orders SET total = total + 1 WHERE id % 7 = 0;
DELETE FROM orders WHERE id % 11 = 0;
COMMIT;
"""
CONTENT = """
SELECT count(*), md5(string_agg(line, E'\\n' ORDER BY line))
FROM (SELECT 'c' || c::text AS line FROM customers c UNION ALL SELECT 'o' || o::text FROM orders o) lines
"""


class ComposeGroup:
    """A project that runs ``docker/compose.yaml`` unchanged, except the images of the roles and their memory limits in bytes."""

    def __init__(self, engine: Engine, image: str, memory: Mapping[str, int]) -> None:
        self.engine = engine
        self.project = f"pgsluice-{uuid.uuid4().hex[:8]}"
        self._directory = Path(tempfile.mkdtemp(prefix="pgsluice-compose-"))
        shutil.copytree(DOCKER, self._directory, dirs_exist_ok=True)
        (self._directory / "secrets").mkdir(mode=0o700, exist_ok=True)
        for name in SECRETS:
            (self._directory / "secrets" / name).write_text(secrets.token_hex(16) + "\n")
            (self._directory / "secrets" / name).chmod(0o644)
        self._memory = memory
        self.use(image)

    def use(self, image: str, *roles: str) -> None:
        """Chooses the image of containers that are created later: those of ``roles``, or of every role."""
        path = self._directory / "override.yaml"
        services: dict[str, Any] = yaml.safe_load(path.read_text())["services"] if path.exists() else {}
        for role in roles or ROLES:
            services[role] = {"image": image, "mem_limit": self._memory[role]}
        path.write_text(yaml.safe_dump({"services": services}))

    def __enter__(self) -> Self:
        try:
            self.compose("up", "--detach", "--no-build")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        try:
            self.compose("down", "--volumes", "--timeout", "5")
        finally:
            shutil.rmtree(self._directory)

    def compose(self, *arguments: str) -> str:
        files = [option for name in ("compose.yaml", "override.yaml") for option in ("--file", str(self._directory / name))]
        command = [*self.engine.compose, "--project-name", self.project, *files, *arguments]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, timeout=2 * DEADLINE_S)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def container(self, service: str) -> str:
        """Returns the id of the service's container. Docker and podman-compose name it differently, with the same labels."""
        labels = (f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}")
        filters = [option for label in labels for option in ("--filter", f"label={label}")]
        found = self.engine.run("ps", "--all", "--quiet", *filters).split()
        assert len(found) == 1, f"containers of {service}: {found}"
        return found[0]

    def state(self, service: str) -> dict[str, Any]:
        state: dict[str, Any] = self.engine.inspect(self.container(service))["State"]
        return state

    def execute(self, service: str, *command: str) -> str:
        return self.engine.run("exec", self.container(service), *command)

    def log(self, service: str) -> str:
        done = subprocess.run([self.engine.program, "logs", self.container(service)], capture_output=True, text=True)
        return done.stdout + done.stderr

    def sql(self, service: str, statement: str) -> str:
        """Runs a statement as the superuser, and returns psql's output."""
        psql = ("psql", "--username", "postgres", "--no-psqlrc", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1")
        return self.execute(service, *psql, "--command", statement, "shop").strip()

    def health(self, service: str) -> str:
        """Returns ``healthy``, ``unhealthy`` or ``starting``. Podman leaves the checks to systemd, so this runs one."""
        if self.engine.program == "podman":
            subprocess.run(["podman", "healthcheck", "run", self.container(service)], capture_output=True, timeout=DEADLINE_S)
        return str(self.state(service)["Health"]["Status"])

    def wait_for_health(self, service: str, wanted: str = "healthy") -> None:
        wait_until(lambda: self.health(service) == wanted, deadline_s=DEADLINE_S, what=lambda: self._described(service, wanted))

    def wait_until_equal(self) -> str:
        """Waits until source and target hold the same; returns the number of rows and their checksum."""

        def content() -> str | None:
            with contextlib.suppress(AssertionError):  # a server that is starting, or the tables are not there yet
                source, target = (self.sql(service, CONTENT) for service in ("source", "target"))
                return source if source == target else None
            return None

        def what() -> str:
            return f"source and target are not equal\n{self._described('replicator')}\n{self._described('worker')}"

        return wait_until(content, deadline_s=DEADLINE_S, what=what, interval_s=1.0)

    def kill(self, service: str) -> None:
        """Sends SIGKILL to the container's first process, as the kernel does when memory is short, and waits for its restart.
        An engine restarts only containers that it did not stop itself."""
        before = self.state(service)
        os.kill(int(before["Pid"]), signal.SIGKILL)
        wait_until(lambda: self._has_restarted(service, before), deadline_s=DEADLINE_S, what=f"the restart of {service}")

    def _has_restarted(self, service: str, before: Mapping[str, Any]) -> bool:
        now = self.state(service)
        return bool(now["Status"] == "running" and now["StartedAt"] != before["StartedAt"])

    def _described(self, service: str, wanted: str = "") -> str:
        return f"{service} {wanted}: {self.state(service)}\n{self.log(service)[-4000:]}"

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Runs transactions at the source. Fails unless one succeeds before the block and one after it."""
        ending, done = threading.Event(), [0]

        def change() -> None:
            while not ending.is_set():
                try:
                    self.sql("source", CHANGE)
                    done[0] += 1
                except AssertionError:  # the source is away
                    ending.wait(0.5)

        thread = threading.Thread(target=change, name="load", daemon=True)
        thread.start()
        try:
            wait_until(lambda: done[0] > 0, what="the first transaction")
            yield
            before = done[0]
            wait_until(lambda: done[0] > before, deadline_s=DEADLINE_S, what="a transaction after what happened")
        finally:
            ending.set()
            thread.join()

    def stop(self, service: str) -> tuple[int, float]:
        """Stops the service; returns its exit code and the seconds that it took."""
        began = time.monotonic()
        self.compose("stop", service)
        return int(self.state(service)["ExitCode"]), time.monotonic() - began
