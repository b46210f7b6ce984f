"""Elasticsearch itself, of its own jars (``maven``), inside the runner of its test framework: no registry has the whole server.

What is a module of a whole server is there as far as the registry has it: version 7.17 has ``scaled_float`` and no vectors,
version 9 has vectors and no ``scaled_float``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.servers.java_25 import compile_java, java_25
from tests.servers.maven import java, server_jars
from tests.servers.opensearch import SETTINGS, RealSearchServer

HEAP = "512m"
FOLDER = Path(__file__).parent
OWN_SETTINGS = {
    "node.name": "node",
    "cluster.name": "pgsluice",
    "indices.id_field_data.enabled": "true",  # tests read documents in the order of their ids
}


@dataclass(frozen=True, slots=True)
class Release:
    """``jars`` as ``maven`` calls them, ``java_release`` is what they need."""

    jars: str
    java_release: int
    sources: tuple[str, ...]
    plugins: tuple[str, ...]
    jvm_options: tuple[str, ...]

    @property
    def java(self) -> str:
        return java() if self.java_release <= 17 else java_25()


RELEASES = {
    9: Release(
        "elasticsearch-9",
        25,
        ("RealElasticsearch.java", "RestRoot.java"),
        ("org.elasticsearch.transport.netty4.Netty4Plugin", "RestRoot"),
        ("--enable-native-access=ALL-UNNAMED",),
    ),
    7: Release(
        "elasticsearch-7",
        17,
        ("RealElasticsearch.java",),
        ("org.elasticsearch.transport.Netty4Plugin", "org.elasticsearch.index.mapper.MapperExtrasPlugin"),
        # Without the library that tells it who it runs as: it refuses root.
        ("-Dtests.security.manager=false", "-Djna.nosys=true", "-Djna.nounpack=true"),
    ),
}


def fetch() -> None:
    """Fetches what nodes need and is not there yet."""
    for jars in ("ecj", *(release.jars for release in RELEASES.values())):
        server_jars(jars)
    java_25()


class RealElasticsearch(RealSearchServer):
    """One node of ``version``; ``start`` after ``stop`` or ``kill`` continues on the same data."""

    title = "Elasticsearch"
    purpose = "elasticsearch"

    def __init__(self, version: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(SETTINGS | OWN_SETTINGS | dict(settings or {}))
        self._release = RELEASES[version]
        self.kind = f"elasticsearch_{version}"

    def _command(self, directory: Path) -> list[str]:
        release, classes, jars = self._release, directory / "classes", server_jars(self._release.jars)
        if not classes.exists():
            compile_java([FOLDER / name for name in release.sources], jars, classes, release=release.java_release)
        (directory / "tmp").mkdir(exist_ok=True)
        jvm = [f"-Xms{HEAP}", f"-Xmx{HEAP}", f"-Djava.io.tmpdir={directory / 'tmp'}", *release.jvm_options]
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        where = [str(directory / "node"), str(self.port), str(self._transport_port), ",".join(release.plugins)]
        return [release.java, *jvm, "-cp", f"{classes}:{jars}/*", "RealElasticsearch", *where, *settings]


class OneElasticsearch(ExitStack):
    """Nodes by their version, of which one runs at a time: they are large."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[int, RealElasticsearch] = {}

    def of(self, version: int) -> RealElasticsearch:
        """Returns the node, which is empty if another one ran before. It ends with the context."""
        if version not in self._running:
            self.close()
            self._running = {version: self.enter_context(RealElasticsearch(version))}
        return self._running[version]
