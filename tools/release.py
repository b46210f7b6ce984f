"""Makes the files of a release, with identical bytes from every clone: ``python -m tools.release TAG DIRECTORY CYCLONEDX_PY``.

The locked setuptools builds them from the files of the tag, with the time of its commit. Another Python can give other bytes: its
zlib compresses differently, and it may have other versions of packages.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tools.bill_of_materials import bill_of_materials
from tools.version import REPOSITORY, current_version

SUMS = "SHA256SUMS"
_CALL = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"


def release(tag: str, directory: Path, cyclonedx: str, repository: Path = REPOSITORY) -> list[Path]:
    """Makes the files in ``directory``, and returns them. Raises SystemExit with the reason if ``tag`` is not a release's."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        checkout = Path(place, "checkout")
        moment = export(tag, checkout, repository)
        check(tag, checkout)
        made = [*packages(checkout, directory, moment), bill_of_materials(checkout, directory, moment, cyclonedx)]
    return [*made, checksums(made)]


def export(tag: str, checkout: Path, repository: Path) -> int:
    """Writes the files of ``tag`` into ``checkout``, and none of the working tree; returns the time of the commit."""
    git = ("git", "-c", "tar.umask=0022", "-C", str(repository))
    commits = (f"refs/tags/{tag}^{{commit}}", "HEAD")  # the lock, the installed packages and the audit are those of HEAD
    found = [subprocess.run([*git, "rev-parse", "--verify", "--quiet", each], capture_output=True).stdout for each in commits]
    if found[0] != found[1] or not found[0]:
        raise SystemExit(f"{tag} is not a tag of the commit that is checked out: see 'Make a release' in CONTRIBUTING.md")
    content = subprocess.run([*git, "archive", tag], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(checkout)  # of our own commit; the parameter 'filter' came within Python 3.11
    return int(subprocess.run([*git, "show", "--no-patch", "--format=%ct", "HEAD"], check=True, capture_output=True).stdout)


def check(tag: str, checkout: Path) -> None:
    named = current_version(checkout)
    if tag != f"v{named}":
        raise SystemExit(f"the tag {tag} is on a commit whose version is {named}: run 'python -m tools.version' before the tag")
    if not re.search(rf"^## {re.escape(named)}\b", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no section '## {named}': rename 'Unreleased' before the tag")
    locked = re.search(r"^setuptools==(\S+)", (checkout / "requirements" / "build.txt").read_text(), re.MULTILINE)
    if locked is None or locked[1] != version("setuptools"):
        raise SystemExit("this environment does not have the setuptools that is locked: run 'make install' on the tag")


def packages(checkout: Path, directory: Path, moment: int) -> tuple[Path, Path]:
    """Builds the sdist, and the wheel from it."""
    sdist = rewritten(built("sdist", checkout, directory, moment), moment)
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(sdist) as archive:
            archive.extractall(place)
        (unpacked,) = Path(place).iterdir()
        return sdist, built("wheel", unpacked, directory, moment)


def built(kind: str, checkout: Path, directory: Path, moment: int) -> Path:
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(moment), "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    suffix = {"sdist": "*.tar.gz", "wheel": "*.whl"}[kind]
    for path in directory.glob(suffix):
        path.unlink()
    command = [sys.executable, "-c", _CALL, kind, str(directory.resolve())]
    done = subprocess.run(command, cwd=checkout, env=environment, umask=0o022, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"setuptools cannot build the {kind}: {done.stdout}{done.stderr}")
    (path,) = directory.glob(suffix)
    return path


def rewritten(sdist: Path, moment: int) -> Path:
    """Gives the files one order, owner and time: setuptools takes those of the machine."""
    with tarfile.open(sdist) as archive:
        found = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        contents = [(member, b"" if file is None else file.read()) for member, file in found]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in sorted(contents, key=lambda each: each[0].name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, len(content), moment
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(plain, io.BytesIO(content))
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=moment))
    return sdist


def checksums(made: Iterable[Path]) -> Path:
    """Writes a file beside ``made`` that ``sha256sum --check`` reads; returns it."""
    paths = sorted(made)
    sums = paths[0].parent / SUMS
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths))
    return sums


if __name__ == "__main__":
    for file in release(sys.argv[1], Path(sys.argv[2]), sys.argv[3]):
        print(file)
