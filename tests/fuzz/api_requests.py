"""Requests to the server of the API, made up by schemathesis from its own description: those that it allows, and others.

They are asked in two roles. An answer is a finding when it is not as described, when it takes too long, or when it lets a viewer
do what is for others; and so is a server that is gone or has grown too large.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, settings

from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.table import all_endpoints
from pgsluice.console.server.endpoint_table import PREFIX, Endpoint
from tests.console.server.served import PASSWORD, Served
from tests.fuzz.outcome import BUILD, MOST_MIB, Outcome
from tests.fuzz.target import LONGEST_S
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

ROLES = (Role.VIEWER, Role.ADMIN)
ENDPOINTS = [endpoint for endpoint in all_endpoints("") if endpoint.media_type == "application/json"]

_EXAMPLES = 20
"""Requests for an operation before the next one has its turn."""
_REQUESTS_OF_TOKEN = 500
"""Requests of a token before another one asks: no token may ask for much more at a time."""
GROUP = "described"
"""The one group that there is; every other request is about it."""


def run_api(seconds: int) -> dict[str, Outcome]:
    """Returns the outcomes by role, each after ``seconds``."""
    outcomes = {}
    with NatsServer() as nats, tempfile.TemporaryDirectory() as folder:
        ensure_bucket(nats.settings(), GROUP)
        with Served(nats.url, Path(folder), env={"SOURCE_PASSWORD": PASSWORD}) as served:
            for role in ROLES:
                asker = Asker(served, role)
                outcomes[role.value] = _run(asker, seconds, BUILD / "findings" / f"api-{role}")
    return outcomes


def _run(asker: Asker, seconds: int, folder: Path) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    began, known = time.monotonic(), set[tuple[str, str]]()
    for endpoint in _again_and_again():
        if time.monotonic() - began > seconds or not asker.served.process.is_running:
            break
        try:
            asker.ask(endpoint, _EXAMPLES)
        except Exception as error:  # noqa: BLE001  whatever comes is a finding
            if (endpoint.name, type(error).__name__) not in known:
                known.add((endpoint.name, type(error).__name__))
                path = folder / f"{endpoint.name}-{type(error).__name__}.txt"
                path.write_text("".join(traceback.format_exception(error)))
                print(f"api as {asker.role}: {path}: {str(error)[:200]}")
    return Outcome(asker.requests, time.monotonic() - began, len(known))


def _always_wants_values(endpoint: Endpoint) -> bool:
    """Whatever the body says."""
    return not callable(endpoint.rows) and endpoint.wants_values(None)


def _again_and_again() -> Iterator[Endpoint]:
    while True:
        yield from ENDPOINTS


@dataclass(slots=True)
class Asker:
    """Asks ``served`` in one role."""

    served: Served
    role: Role
    requests: int = 0
    _token: str = ""
    _left: int = 0
    _described: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        from tests.fuzz.described_api import described_api  # see there

        self._described = described_api(self.served)

    @property
    def sees_values(self) -> bool:
        return self.role is Role.ADMIN

    def ask(self, endpoint: Endpoint, examples: int, *, is_repeatable: bool = False) -> None:
        """Raises for a finding."""
        if self._left <= 0:
            self._token = self.served.token(f"fuzz-{self.role}-{self.requests}", self.role.value, values=self.sees_values)
            self._left = _REQUESTS_OF_TOKEN
        from tests.fuzz.described_api import MODES

        operation = self._described[PREFIX + endpoint.path][endpoint.verb]
        for mode in MODES:
            cases = operation.as_strategy(generation_mode=mode)
            self._asked(endpoint, examples, is_repeatable)(given(case=cases))()
        self._look_at_server()

    def _asked(self, endpoint: Endpoint, examples: int, is_repeatable: bool) -> Callable[[Any], Callable[[], None]]:
        from tests.fuzz.described_api import CHECKS

        def ask_one(case: Any) -> None:
            self.requests += 1
            self._left -= 1
            if self.requests % 2 and "group" in (case.path_parameters or {}):
                case.path_parameters["group"] = GROUP
            began = time.monotonic()
            answer = case.call_and_validate(
                base_url=self.served.address, headers={"Authorization": f"Bearer {self._token}"}, checks=CHECKS
            )
            took = time.monotonic() - began
            assert took < LONGEST_S, f"{endpoint.verb} {endpoint.path} was answered in {took:.1f} s"
            assert answer.status_code != 429, "too many requests: what was made up was not looked at"
            if not self.role.includes(endpoint.role) or (_always_wants_values(endpoint) and not self.sees_values):
                assert answer.status_code >= 400, f"{endpoint.verb} {endpoint.path} is not for a {self.role}"

        made_up = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=is_repeatable,
        )
        return lambda over: made_up(over(ask_one))

    def _look_at_server(self) -> None:
        assert self.served.process.is_running, "the server is gone"
        used = psutil.Process(self.served.process.pid).memory_info().rss
        assert used < MOST_MIB << 20, f"the server has {used >> 20} MiB"
