"""OpenSearch, twice: a fake that is there at once and forgets at its end, and the real one.

Their answers to what the search sink asks are the same (``tests/test_search_servers.py``). The fake is the binary of the package
``osmem_server``; the real one is OpenSearch's own jars (``maven``) in a JVM, which needs a JDK, Java 17 or later.
"""

from __future__ import annotations

import http.client
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import orjson
from osmem_server import resolve_binary

from tests.servers.child import HOST, ChildProcess, free_port
from tests.servers.http_proxy import HttpProxy
from tests.servers.lucene_limits import LuceneLimits
from tests.servers.maven import java, server_jars
from tests.servers.server_process import ServerProcess

REQUEST_DEADLINE_S = 60.0

NODE_CLASS = Path(__file__).with_name("RealOpenSearch.java")
HEAP = "384m"
SETTINGS = {
    "discovery.type": "single-node",
    "network.host": HOST,
    # Of a full disk only what a test asks for: the tests' machine may be nearly full.
    "cluster.routing.allocation.disk.watermark.low": "3mb",
    "cluster.routing.allocation.disk.watermark.high": "2mb",
    "cluster.routing.allocation.disk.watermark.flood_stage": "1mb",
}


class SearchServer(ServerProcess):
    """A server that answers as OpenSearch does."""

    kind: str
    keeps_data: bool
    """Over its end."""
    title = "OpenSearch"
    purpose = "opensearch"
    start_deadline_s = 240.0
    credentials: ClassVar[Mapping[str, str]] = {}
    """Headers that say who asks."""

    def __init__(self, port: int = 0) -> None:
        """On any free port, unless one is given."""
        super().__init__(port or free_port())

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @abstractmethod
    def _command(self, directory: Path) -> list[str]: ...

    def _spawn(self, directory: Path, log: Path) -> ChildProcess:
        return ChildProcess(self._command(directory), log_path=log, cwd=directory)

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/_cluster/health")["status"] in ("green", "yellow")
        except (http.client.HTTPException, SearchServerError):
            return False

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        """One request; ``body`` is JSON, or lines of it that are bytes already. Raises SearchServerError for what fails."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_DEADLINE_S)
        try:
            content = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
            connection.request(method, target, content, {"Content-Type": "application/json", **self.credentials})
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise SearchServerError(answer.status, said.decode(errors="replace"))
        return orjson.loads(said) if said else None

    def indices(self) -> list[str]:
        return sorted(each["index"] for each in self.ask("GET", "/_cat/indices?format=json"))

    def documents(self, index: str) -> dict[str, tuple[int, dict[str, Any]]]:
        """All that a search finds: version and source of each, by their ids."""
        self.ask("POST", f"/{index}/_refresh")
        found: dict[str, tuple[int, dict[str, Any]]] = {}
        query: dict[str, Any] = {"size": 1000, "version": True, "sort": [{"_id": "asc"}], "query": {"match_all": {}}}
        while hits := self.ask("POST", f"/{index}/_search", query)["hits"]["hits"]:
            found |= {hit["_id"]: (hit["_version"], hit["_source"]) for hit in hits}
            query["search_after"] = hits[-1]["sort"]
        return found

    def count(self, index: str) -> int:
        """As a search sees it now."""
        return int(self.ask("GET", f"/{index}/_count")["count"])

    def clear(self) -> None:
        """Removes all indices, templates excepted."""
        for index in self.indices():
            self.ask("DELETE", f"/{index}")


class SearchServerError(Exception):
    """What a server answered that is no success."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:2000]}")
        self.status, self.said = status, said


class FakeOpenSearch(SearchServer):
    """In memory; says that it is OpenSearch 3. A proxy in front of it refuses what it would take (``lucene_limits``)."""

    kind = "fake"
    keeps_data = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self._own_port = free_port()
        self._proxy: HttpProxy | None = None

    def _spawn(self, directory: Path, log: Path) -> ChildProcess:
        if self._proxy is None:
            self._proxy = HttpProxy(self._own_port, self.port)
            self._proxy.before = LuceneLimits(self._own_port)
            self._proxy.__enter__()
        return super()._spawn(directory, log)

    def _command(self, directory: Path) -> list[str]:
        return [resolve_binary(), "--addr", f"{HOST}:{self._own_port}", "--no-ja", "--no-stdin-watch"]

    def close(self) -> None:
        super().close()
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy.__exit__(None, None, None)


class RealSearchServer(SearchServer):
    """One node in a JVM; ``start`` after ``stop`` or ``kill`` continues on the same data."""

    keeps_data = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__()
        self._transport_port = free_port()
        self._settings = dict(settings)


class RealOpenSearch(RealSearchServer):
    """OpenSearch 2.19."""

    kind = "real"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(SETTINGS | dict(settings or {}))

    def _command(self, directory: Path) -> list[str]:
        (directory / "tmp").mkdir(exist_ok=True)
        jvm = [f"-Xms{HEAP}", f"-Xmx{HEAP}", f"-Djava.io.tmpdir={directory / 'tmp'}"]
        classes = ["-cp", f"{server_jars('opensearch')}/*", str(NODE_CLASS)]
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        return [java(), *jvm, *classes, str(directory / "node"), str(self.port), str(self._transport_port), *settings]
