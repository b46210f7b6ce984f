"""A real Prometheus, which scrapes every second and has the shipped rules in a hurry."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.deploy.tools import tool
from tests.servers.child import HOST, ChildProcess, PrivateDirectory, free_port
from tests.waiting import wait_until

START_DEADLINE_S = 60.0
FASTER = 60
"""How many times faster than as they are shipped the rules are: a minute is a second."""

_DURATION = re.compile(r"(\d+)(m|h)")
_RANGE = re.compile(rf"\[{_DURATION.pattern}\]")
_AGE = re.compile(r"(_seconds\b[^>]*> )(\d+)\b")


def hurried(rules: str) -> str:
    """The rules with every ``for``, every range and every age that is compared with a number divided by FASTER."""
    document = yaml.safe_load(rules)
    for group in document["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = _DURATION.sub(_divided, rule["for"])
            expression = _RANGE.sub(lambda match: _DURATION.sub(_divided, match[0]), rule["expr"])
            rule["expr"] = _AGE.sub(lambda match: f"{match[1]}{int(match[2]) / FASTER:g}", expression)
    return yaml.safe_dump(document)


def _divided(duration: re.Match[str]) -> str:
    return f"{int(duration[1]) * {'m': 60, 'h': 3600}[duration[2]] // FASTER}s"


class PrometheusServer:
    """Scrapes ``targets`` (HOST:PORT); leaving the context ends it and removes what it stored."""

    def __init__(self, targets: list[str], rules: str) -> None:
        self._directory = PrivateDirectory("prometheus")
        self.url = f"http://{HOST}:{free_port()}"
        job = {"job_name": "pgsluice", "static_configs": [{"targets": targets}]}
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": [job]}
        (self._path / "rules.yaml").write_text(rules)
        (self._path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._process: ChildProcess | None = None

    @property
    def _path(self) -> Path:
        return self._directory.path

    def __enter__(self) -> Self:
        address = self.url.removeprefix("http://")
        command = [tool("prometheus"), f"--config.file={self._path}/prometheus.yaml", f"--storage.tsdb.path={self._path}/data"]
        log = self._path / "log"
        self._process = ChildProcess([*command, f"--web.listen-address={address}"], log_path=log, cwd=self._path)
        wait_until(self._is_ready, deadline_s=START_DEADLINE_S, what="Prometheus")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            print((self._path / "log").read_text()[-4000:])
        if self._process is not None:
            self._process.kill()
        self._directory.remove()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._path / "log").read_text()
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: str | float) -> Any:
        """``data`` of the API's answer; fails with its error, and with its warnings."""
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as response:
                answer = json.load(response)
        except HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer["warnings"]
        return answer["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        """What an instant query finds now."""
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """The alerts that fire now, by their names."""
        by_name: dict[str, list[dict[str, Any]]] = {}
        for alert in self.ask("alerts")["alerts"]:
            if alert["state"] == "firing":
                by_name.setdefault(alert["labels"]["alertname"], []).append(alert)
        return by_name

    def wait_until_firing(self, name: str, deadline_s: float) -> dict[str, Any]:
        fires = wait_until(lambda: self.firing().get(name, []), deadline_s=deadline_s, what=f"the alert {name}", interval_s=0.5)
        return fires[0]

    def wait_until_resolved(self, name: str, deadline_s: float) -> None:
        wait_until(lambda: name not in self.firing(), deadline_s=deadline_s, what=f"the end of {name}", interval_s=0.5)
