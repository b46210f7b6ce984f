"""Elasticsearch itself, of its own jars (``maven``), inside the runner of its test framework: no registry has the whole server.

What is a module of a whole server is there as far as the registry has it: version 7.17 has ``scaled_float`` and no vectors,
version 9 has vectors and no ``scaled_float``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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
    for jars in ("ecj", "elasticsearch-9-security", *(release.jars for release in RELEASES.values())):
        server_jars(jars)
    java_25()


ADMINISTRATOR, PASSWORD = "administrator", "Pa55-word"
SECURITY = {
    "xpack.security.enabled": "true",
    "xpack.license.self_generated.type": "basic",
    "http.type": "security4",
    "transport.type": "security4",
}
SAML = (
    "org.opensaml.core.xml.XMLObject",
    "org.opensaml.saml.saml2.core.AuthnRequest",
    "org.opensaml.saml.saml2.core.LogoutRequest",
    "org.opensaml.saml.saml2.core.LogoutResponse",
    "org.opensaml.saml.saml2.core.NameID",
    "org.opensaml.saml.saml2.core.RequestAbstractType",
    "org.opensaml.saml.saml2.core.StatusResponseType",
    "org.opensaml.saml.saml2.metadata.EntityDescriptor",
    "org.opensaml.security.x509.X509Credential",
)
"""Names in signatures of what is never used here: no registry has the libraries of SAML."""


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class RealElasticsearch(RealSearchServer):
    """One node of ``version``; ``start`` after ``stop`` or ``kill`` continues on the same data."""

    title = "Elasticsearch"
    purpose = "elasticsearch"

    def __init__(self, version: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(SETTINGS | OWN_SETTINGS | dict(settings or {}))
        self._release = RELEASES[version]
        self.kind = f"elasticsearch_{version}"

    def _command(self, directory: Path) -> list[str]:
        release, classes = self._release, directory / "classes"
        jars = [server_jars(release.jars), *self._more_jars()]
        if not classes.exists():
            sources = [*(FOLDER / name for name in release.sources), *self._more_sources(directory)]
            compile_java(sources, jars, classes, release=release.java_release)
        (directory / "tmp").mkdir(exist_ok=True)
        jvm = [f"-Xms{HEAP}", f"-Xmx{HEAP}", f"-Djava.io.tmpdir={directory / 'tmp'}", *release.jvm_options]
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        where = [str(directory / "node"), str(self.port), str(self._transport_port), ",".join((*release.plugins, *self._plugins))]
        paths = ":".join([str(classes), *(f"{folder}/*" for folder in jars)])
        return [release.java, *jvm, "-cp", paths, "RealElasticsearch", *where, *settings]

    _plugins: ClassVar[tuple[str, ...]] = ()

    def _more_jars(self) -> list[Path]:
        return []

    def _more_sources(self, directory: Path) -> list[Path]:
        return []


class GuardedElasticsearch(RealElasticsearch):
    """Version 9 with its security: users may do what their roles say. Tests ask as ``ADMINISTRATOR``, who may do all."""

    _plugins = ("org.elasticsearch.xpack.core.XPackPlugin", "org.elasticsearch.xpack.security.Security")
    credentials = basic(ADMINISTRATOR, PASSWORD)

    def __init__(self, roles: Mapping[str, Any]) -> None:
        """A role for each user, who is called as it is and has ``PASSWORD``."""
        super().__init__(9, SECURITY)
        self._roles = dict(roles)

    def _more_jars(self) -> list[Path]:
        return [server_jars("elasticsearch-9-security")]

    def _more_sources(self, directory: Path) -> list[Path]:
        sources = []
        for name in SAML:
            package, _, interface = name.rpartition(".")
            sources.append(directory / f"{interface}.java")
            sources[-1].write_text(f"package {package}; public interface {interface} {{}}")
        return sources

    def _command(self, directory: Path) -> list[str]:
        configuration = directory / "node" / "config"
        configuration.mkdir(parents=True, exist_ok=True)
        users = [ADMINISTRATOR, *self._roles]
        (configuration / "users").write_text("".join(f"{user}:{PASSWORD}\n" for user in users))
        (configuration / "users_roles").write_text(
            "".join(f"{'superuser' if user == ADMINISTRATOR else user}:{user}\n" for user in users)
        )
        roles = (f"{user}: {json.dumps(role)}\n" for user, role in self._roles.items())  # YAML, a role to a line
        (configuration / "roles.yml").write_text("".join(roles))
        return super()._command(directory)


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
