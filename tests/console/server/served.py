"""``pgsluice server`` as a process, and clients that ask it as programs and browsers do."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from pgsluice.console.program import run
from tests.servers.program import PgsluiceProcess
from tests.waiting import wait_until

CSRF_HEADER = "X-Pgsluice-Csrf"
PASSWORD = "m4rk3r"
"""Of a source, that a server is given. Ours let in whoever has any."""

_TLS = ssl.create_default_context()
"""Of all clients. Each would read the certificates of all authorities again, which takes 30 ms."""
_ADDRESS = re.compile(r"serving.*address=(\S+)")


GROUPS: Mapping[str, object] = {"variables": ["SOURCE_PASSWORD", "TARGET_PASSWORD", "SECRET_OF_*"]}
"""What documents may name, beside what they may without places."""


def places_file(directory: Path, **groups: object) -> str:
    """A places file for groups alone."""
    path = directory / "places-of-groups.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    return str(path)


class Served:
    """A server of the NATS at ``nats_url``, on a free port, with a state directory of its own in ``directory``. Its places are
    those of GROUPS, unless others are given."""

    def __init__(
        self, nats_url: str, directory: Path, *arguments: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.nats_url = nats_url
        self.state_directory = directory / "server"
        if "pipelines_places" not in options:
            options["pipelines_places"] = places_file(directory, **GROUPS)
        self._options: dict[str, Any] = {
            "nats-url": nats_url,
            "listen": "127.0.0.1:0",
            "server-state-dir": str(self.state_directory),
            "pipelines-places": options["pipelines_places"]
            if "pipelines_places" in options
            else places_file(directory, **GROUPS),
        } | {name.replace("_", "-"): value for name, value in options.items()}
        self.process = PgsluiceProcess("server", *arguments, config=self._options, env=env)
        self._starts = 0
        self.address = ""
        """The newest start's."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        print(f"server:\n{self.process.log()}")  # pytest shows it when a test fails
        self.process.close()

    def start(self) -> Self:
        """May be called again after ``kill``; the address is another one then."""
        self.process.start()
        self._starts += 1
        wait_until(lambda: len(self._addresses()) >= self._starts or not self.process.is_running, what="the server's address")
        assert self.process.is_running, self.process.log()
        self.address = self._addresses()[-1]
        return self

    def kill(self) -> None:
        """SIGKILL to the server alone."""
        os.kill(self.process.pid, signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL

    @functools.cached_property
    def admin_token(self) -> str:
        return (self.state_directory / "token").read_text().strip()

    def token(self, name: str, role: str = "viewer", *, values: bool = False, groups: str = "*") -> str:
        """A new one, made by the command, as a person would."""
        flags = ["--groups", groups, *(["--values"] if values else [])]
        return self.run_command("token", "create", name, "--role", role, *flags)

    def link(self, name: str = "admin") -> str:
        """One for a browser, with the address that this start has."""
        code = self.run_command("token", "link", name, "--listen", self.address.partition("//")[2]).partition("/login")[2]
        return f"{self.address}/login{code}"

    def run_command(self, *arguments: str) -> str:
        """What a command of the server's machine prints, which this process carries out."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert run([*arguments, "--server-state-dir", str(self.state_directory)]) == 0
        return printed.getvalue().strip()

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """As a program asks; ``token`` defaults to the first one."""
        bearer = {"Authorization": f"Bearer {self.admin_token if token is None else token}"}
        headers = bearer | headers
        return httpx.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=30, follow_redirects=False, verify=_TLS)

    @contextlib.contextmanager
    def browser(self, name: str = "admin") -> Iterator[httpx.Client]:
        """As a browser asks that has opened a link."""
        with httpx.Client(base_url=f"{self.address}/api/v1", timeout=30, verify=_TLS) as client:
            assert client.get(self.link(name), follow_redirects=False).status_code == 303
            client.headers[CSRF_HEADER] = client.cookies["pgsluice-csrf"]
            yield client

    def _addresses(self) -> list[str]:
        return _ADDRESS.findall(self.process.log())
