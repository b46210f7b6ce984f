"""What ``pip install pgsluice`` brings: one name, which packages of any other name cannot disturb."""

from __future__ import annotations

import re
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from pgsluice.worker.sinks.lines.schemas.generating import DIRECTORY
from tests.installed_wheel import build_wheel, make_environment, pip
from tests.misses import no_misses
from tests.page_files import write_files_of_page
from tests.source_code import PRODUCT, REPOSITORY, relative, sources

STRANGERS = PRODUCT
"""Packages of others may be called as our folders are."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(wheel, tmp_path_factory.mktemp("environment"))


def stranger(directory: Path, name: str) -> Path:
    """A wheel of somebody else's package of that name, which says so when it is imported."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    information = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": f"raise ImportError('this is another {name}')\n",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{information}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def check_program(environment: Path, directory: Path) -> None:
    version = run(environment, directory, "--version")
    assert version.startswith("pgsluice ")
    assert "postgres" in run(environment, directory, "worker", "--help")
    run(environment, directory, "worker", "postgres", "--help")
    run(environment, directory, "replicator", "--help")


def run(environment: Path, directory: Path, *arguments: str) -> str:
    command = [str(environment / "bin" / "pgsluice"), *arguments]
    done = subprocess.run(command, cwd=directory, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    strangers = (top for top in tops if not re.fullmatch(r"pgsluice|pgsluice-[^/]+\.dist-info", top))
    no_misses(strangers, "installed beside pgsluice, where a package of somebody else may have that name")
    assert "pgsluice" in tops


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".py")}
    modules = {f"pgsluice/{relative(path)}" for path in sources(*PRODUCT)} | {"pgsluice/__init__.py"}
    no_misses(modules - names, "not in the wheel: see [tool.setuptools.packages.find] of pyproject.toml")
    no_misses(names - modules, "in the wheel, and no module of the product")


def test_the_wheel_holds_what_is_not_python(environment: Path) -> None:
    (package,) = environment.glob("lib/python3*/site-packages/pgsluice")
    assert (package / "py.typed").exists()
    assert {path.name for path in (package / "schemas").iterdir()} == {path.name for path in DIRECTORY.iterdir()}
    assert (package / "shared" / "spark" / "log4j2.properties").read_text()
    assert (package / "shared" / "spark" / "spark_python.sh").stat().st_mode & stat.S_IXUSR


def test_the_image_is_built_of_every_package() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (REPOSITORY / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    no_misses({*PRODUCT, "pgsluice"} - copied, "not copied into the image: see docker/Dockerfile")


def test_the_program_works_beside_packages_called_as_its_parts(environment: Path, tmp_path: Path) -> None:
    python = str(environment / "bin" / "python")
    wheels = [str(stranger(tmp_path, name)) for name in STRANGERS]
    pip("--python", python, "install", "--no-deps", "--no-index", *wheels)
    check_program(environment, tmp_path)
    pip("--python", python, "uninstall", "--yes", *STRANGERS)
    check_program(environment, tmp_path)


def test_the_public_api_is_there_once_it_is_installed(environment: Path, tmp_path: Path) -> None:
    script = "import pgsluice; print(pgsluice.__file__); [getattr(pgsluice, name) for name in pgsluice.__all__]"
    command = [str(environment / "bin" / "python"), "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(environment))


def test_without_pytest_only_the_contract_is_missing_and_names_its_extra(environment: Path, tmp_path: Path) -> None:
    script = "import sys; sys.modules['pytest'] = None; import pgsluice; pgsluice.Sink; import pgsluice.testing"
    command = [str(environment / "bin" / "python"), "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.stderr.endswith("ModuleNotFoundError: pgsluice.testing needs pytest: pip install pytest\n")


@pytest.mark.parametrize(("page", "tests"), [("how-to/own-sink.md", 37), ("how-to/own-rule.md", 4)])
def test_what_pages_have_an_author_write_in_an_empty_directory_passes(
    environment: Path, tmp_path: Path, page: str, tests: int
) -> None:
    write_files_of_page(page, tmp_path)
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout


def test_the_wheel_holds_the_licence_and_says_which_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert archive.read(licence) == (REPOSITORY / "LICENSE").read_bytes()
        assert b"\nLicense-Expression: Apache-2.0\n" in archive.read(metadata)
