"""The lists of files that images leave out: each gives reasons, and ``docker/leave_out.py`` removes what it names."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.misses import no_misses
from tests.servers.program import REPOSITORY

DOCKER = REPOSITORY / "docker"


def leave_out(packages: Path, *lines: str, options: tuple[str, ...] = ("--strict",)) -> subprocess.CompletedProcess[str]:
    listed = packages.with_name("list.txt")
    listed.write_text("# A reason.\n" + "\n".join(lines) + "\n")
    command = [sys.executable, str(DOCKER / "leave_out.py"), *options, str(packages), str(listed)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    made = tmp_path / "site-packages"
    (made / "folder" / "inner").mkdir(parents=True)
    for name in ("folder/inner/a", "one.so", "two.so", "kept"):
        (made / name).write_text(name)
    with zipfile.ZipFile(made / "some.jar", "w", zipfile.ZIP_DEFLATED) as jar:
        for name in ("linux/amd64/lib.so", "win/lib.dll", "A.class"):
            jar.writestr(name, name * 100)
    return made


def test_files_folders_and_members_of_archives_are_left_out(packages: Path) -> None:
    assert leave_out(packages, "*.so", "folder", "some*.jar::win/*").returncode == 0
    assert sorted(path.name for path in packages.rglob("*")) == ["kept", "some.jar"]
    with zipfile.ZipFile(packages / "some.jar") as jar:
        assert jar.namelist() == ["linux/amd64/lib.so", "A.class"]
        assert jar.read("A.class") == b"A.class" * 100


@pytest.mark.parametrize("line", ["absent-*.jar", "some.jar::darwin/*"])
def test_a_line_that_is_no_longer_true_is_an_error_of_the_tests_and_a_warning_of_a_build(packages: Path, line: str) -> None:
    for options, exit_code in ((("--strict",), 1), ((), 0)):
        done = leave_out(packages, line, "kept*", options=options)
        assert done.returncode == exit_code
        assert f"{line} matches nothing in {packages}" in done.stderr
        (packages / "kept").touch()


def test_every_group_of_a_list_begins_with_its_reason() -> None:
    groups = [
        (path.name, group.splitlines()[0])
        for path in sorted((DOCKER / "left-out").glob("*.txt"))
        for group in path.read_text().strip().split("\n\n")
    ]
    assert len(groups) > 10
    no_misses((f"{name}: {line}" for name, line in groups if not line.startswith("# ")), "write the reason above the group")
