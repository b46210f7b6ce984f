"""Releases: identical bytes from every clone, and only from a tag of the checked-out commit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.source_code import PRODUCT, REPOSITORY, relative, sources
from tests.tools.test_dependencies import locked
from tools.release import SUMS
from tools.version import current_version

TAG = f"v{current_version()}"
TOOL = """#!/bin/sh
[ "$SOURCE_DATE_EPOCH" = 1764201600 ] || exit 3
printf '{"components": [{"name": "pyspark", "version": "%s", "description": "line 3"}]}' "$(
  sed -n 's/^pyspark==\\([^ ]*\\).*/\\1/p' requirements/image.txt)"
"""
"""A program that describes the lock as cyclonedx-py does."""


def git(repository: Path, *arguments: str) -> None:
    person = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    environment = os.environ | {"GIT_COMMITTER_DATE": "2025-11-27T00:00:00Z", "GIT_AUTHOR_DATE": "2025-11-27T00:00:00Z"}
    subprocess.run(["git", "-C", str(repository), *person, *arguments], check=True, env=environment, capture_output=True)


def clone(directory: Path, of: Path = REPOSITORY) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(of), str(directory)], check=True)
    return directory


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a clone whose last commit is a release, with the files of this working tree."""
    repository = clone(tmp_path_factory.mktemp("release") / "tagged")
    changed = subprocess.run(["git", "-C", str(REPOSITORY), "diff", "--binary", "HEAD"], check=True, capture_output=True).stdout
    if changed:
        subprocess.run(["git", "-C", str(repository), "apply", "--index"], input=changed, check=True)
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {TAG.removeprefix('v')}"))
    git(repository, "commit", "--quiet", "--all", "--message", "release: as a test")
    git(repository, "tag", TAG)
    return repository


def stub(directory: Path) -> Path:
    tool = directory / "cyclonedx-py"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    return tool


def run(repository: Path, tag: str = TAG, tool: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.release", tag, "dist", str(tool or stub(repository.parent))]
    return subprocess.run(command, cwd=repository, env=os.environ | variables, capture_output=True, text=True)


@pytest.fixture(scope="module")
def released(tagged: Path) -> list[Path]:
    """Returns the directories of the files that two clones made, with different paths, umasks and time zones."""
    directories = []
    for name, mask, zone in (("here", 0o022, "UTC"), ("a longer name/elsewhere", 0o077, "Pacific/Chatham")):
        before = os.umask(mask)
        try:
            repository = clone(tagged.parent / name, of=tagged)
            (repository / "pgsluice" / "left_over.py").write_text("raise ImportError")
            done = run(repository, TZ=zone)
        finally:
            os.umask(before)
        assert done.returncode == 0, done.stderr
        directories.append(repository / "dist")
    return directories


def test_two_clones_in_different_places_make_the_same_files(released: list[Path]) -> None:
    here, elsewhere = ({path.name: path.read_bytes() for path in directory.iterdir()} for directory in released)
    assert here == elsewhere
    assert len(here) == 4
    sums = here.pop(SUMS).decode()
    assert sums == "".join(f"{hashlib.sha256(here[name]).hexdigest()}  {name}\n" for name in sorted(here))


def test_the_files_hold_what_is_committed_and_the_jars_of_spark(released: list[Path]) -> None:
    (bill, sdist, wheel) = (next(released[0].glob(pattern)) for pattern in ("*.cdx.json", "*.tar.gz", "*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if name.endswith(".py")}
    assert modules == {f"pgsluice/{relative(path)}" for path in sources(*PRODUCT)} | {"pgsluice/__init__.py"}
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(1764201600, 0, "")}
    assert not any("left_over" in member.name or member.issym() for member in members)
    assert '"name": "Apache-2.0"' in bill.read_text()
    assert "line 3" not in bill.read_text()
    assert '"purl": "pkg:maven/org.apache.spark/spark-core_2.13@' in bill.read_text()


VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


@pytest.mark.deploy
def test_the_bill_of_materials_is_valid_and_every_locked_package_is_in_it(tagged: Path, tmp_path: Path) -> None:
    tools = REPOSITORY / "build" / "release-tools" / "bin"
    if not tools.exists():
        pytest.skip("cyclonedx-py is not installed: 'make test-deploy' installs it")
    repository = clone(tmp_path / "clone", of=tagged)
    done = run(repository, tool=tools / "cyclonedx-py")
    assert done.returncode == 0, done.stderr
    (text,) = (path.read_text() for path in (repository / "dist").glob("*.cdx.json"))
    validated = subprocess.run([str(tools / "python"), "-c", VALIDATE], input=text, capture_output=True, text=True, check=True)
    assert validated.stdout == "None\n"
    components = {(each["name"], each["version"]): each for each in json.loads(text)["components"]}
    assert components.keys() == {(pin.name, pin.version) for pin in locked("image")}
    assert "licenses" in components["uvloop", version("uvloop")]


@pytest.mark.parametrize(
    ("tag", "change", "sentence"),
    [
        ("v9.9.9", (), "v9.9.9 is not a tag of the commit that is checked out"),
        (TAG, ("commit", "--allow-empty", "--message", "later"), f"{TAG} is not a tag of the commit that is checked out"),
        ("v9.9.9", ("tag", "v9.9.9"), f"the tag v9.9.9 is on a commit whose version is {TAG[1:]}: run 'python -m tools.version'"),
    ],
)
def test_what_is_no_release_is_refused(tagged: Path, tmp_path: Path, tag: str, change: tuple[str, ...], sentence: str) -> None:
    repository = clone(tmp_path / "clone", of=tagged)
    if change:
        git(repository, *change)
    done = run(repository, tag)
    assert done.returncode == 1
    assert done.stderr.startswith(sentence)


def test_a_release_without_its_part_of_the_changelog_is_refused(tagged: Path, tmp_path: Path) -> None:
    repository = clone(tmp_path / "clone", of=tagged)
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    git(repository, "commit", "--all", "--message", "later")
    git(repository, "tag", "--force", TAG)
    done = run(repository)
    assert done.returncode == 1
    assert done.stderr.startswith(f"CHANGELOG.md has no section '## {TAG[1:]}'")
