"""PostgreSQL's own tests, as Debian's source packages have them; fetched once into ``build/postgres-tests``.

A package's checksum stands in its suite's index, which comes by https. ``DEBIAN_MIRROR`` is where from.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.servers.maven import REPOSITORY, locked

MIRROR = os.environ.get("DEBIAN_MIRROR", "https://deb.debian.org/debian")
SUITES = {15: "bookworm", 18: "sid"}
"""Of each major version that is tried, a suite that has it."""
VERSIONS = tuple(SUITES)
FETCH_DEADLINE_S = 120.0
_WANTED = re.compile(r"[^/]+/(src/test/(?:subscription|regress)/.*)")


@dataclass(frozen=True, slots=True)
class Package:
    """The upstream tarball of a source package."""

    path: str
    sha256: str


def tests_of(version: int) -> Path:
    """The folder that holds ``src/test/…`` of the version; fetched when it is not there. Processes that ask at once take
    turns."""
    home = REPOSITORY / "build" / "postgres-tests"
    tree = home / str(version)
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock"):
        if not tree.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as working:
                _unpack(_fetched(_package(version)), Path(working) / "tree")
                (Path(working) / "tree").rename(tree)
    return tree


def _package(version: int) -> Package:
    index = lzma.decompress(_get(f"dists/{SUITES[version]}/main/source/Sources.xz")).decode()
    name = f"Package: postgresql-{version}\n"
    paragraphs = [each for each in index.split("\n\n") if each.lstrip().startswith(name)]
    assert paragraphs, f"{SUITES[version]} of {MIRROR} has no postgresql-{version}: name another suite in SUITES"
    paragraph = paragraphs[-1]
    [folder] = re.findall(r"^Directory: (.+)$", paragraph, re.MULTILINE)
    [(digest, file)] = re.findall(r"^ ([0-9a-f]{64}) \d+ (\S+\.orig\.tar\.\w+)$", paragraph, re.MULTILINE)
    return Package(f"{folder}/{file}", digest)


def _fetched(package: Package) -> bytes:
    content = _get(package.path)
    digest = hashlib.sha256(content).hexdigest()
    assert digest == package.sha256, f"{package.path} has the checksum {digest}, not the {package.sha256} of the index"
    return content


def _get(path: str) -> bytes:
    with urllib.request.urlopen(f"{MIRROR}/{path}", timeout=FETCH_DEADLINE_S) as answer:
        content: bytes = answer.read()
    return content


def _unpack(tarball: bytes, tree: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(tarball)) as tar:
        for member in tar:
            wanted = _WANTED.fullmatch(member.name)
            content = tar.extractfile(member) if wanted is not None and member.isfile() else None
            if wanted is None or content is None:
                continue
            path = tree / wanted[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
