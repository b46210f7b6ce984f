"""What ``pip install pgsluice`` brings: one name, which packages of any other name cannot disturb."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
STRANGERS = ("shared", "rules", "worker", "console", "replicator")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network from a copy, because setuptools leaves things where it builds, and takes them up again."""
    directory = tmp_path_factory.mktemp("wheel")
    checkout = directory / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, checkout / name)
    shutil.copytree(REPOSITORY / "pgsluice", checkout / "pgsluice", symlinks=True)
    for link in (REPOSITORY / "pgsluice").iterdir():
        if link.is_symlink():
            shutil.copytree(link.resolve(), checkout / link.name)
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(directory), str(checkout))
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own that holds the wheel; what pgsluice depends on is this one's."""
    directory = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    pip("--python", str(directory / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    (site_packages,) = directory.glob("lib/python3*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


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
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pgsluice"}
    assert len(tops) == 2


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".py")}
    packages = [link for link in (REPOSITORY / "pgsluice").iterdir() if link.is_symlink()]
    modules = {f"pgsluice/{path.relative_to(REPOSITORY)}" for link in packages for path in link.resolve().rglob("*.py")}
    assert names == modules | {"pgsluice/__init__.py"}


def test_the_wheel_holds_what_is_not_python(environment: Path) -> None:
    (package,) = environment.glob("lib/python3*/site-packages/pgsluice")
    assert (package / "py.typed").exists()
    assert (package / "shared" / "spark" / "log4j2.properties").read_text()
    assert (package / "shared" / "spark" / "spark_python.sh").stat().st_mode & stat.S_IXUSR


def test_the_program_works_beside_packages_called_as_its_parts(environment: Path, tmp_path: Path) -> None:
    python = str(environment / "bin" / "python")
    check_program(environment, tmp_path)
    wheels = [str(stranger(tmp_path, name)) for name in STRANGERS]
    pip("--python", python, "install", "--no-deps", "--no-index", *wheels)
    check_program(environment, tmp_path)
    pip("--python", python, "uninstall", "--yes", *STRANGERS)
    check_program(environment, tmp_path)


def test_the_public_api_is_there_once_it_is_installed(environment: Path, tmp_path: Path) -> None:
    script = "import pgsluice; print(pgsluice.__file__); [getattr(pgsluice, name) for name in pgsluice.__all__]"
    done = subprocess.run([str(environment / "bin" / "python"), "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(environment))


def test_the_wheel_holds_the_licence_and_says_which_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert archive.read(licence) == (REPOSITORY / "LICENSE").read_bytes()
        assert b"\nLicense-Expression: Apache-2.0\n" in archive.read(metadata)
