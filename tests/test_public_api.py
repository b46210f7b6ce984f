"""What ``import pgsluice`` promises: names that are there, documented, typed, and cost nothing until they are used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import pgsluice
from tests.misses import no_misses
from tests.worker.sinks import sqlite_sink

SOURCE = Path(pgsluice.__file__)


def test_every_public_name_is_there() -> None:
    absent = (name for name in pgsluice.__all__ if getattr(pgsluice, name, None) is None or name not in dir(pgsluice))
    no_misses(absent, "in __all__ of pgsluice/__init__.py, and not to be had: name its module in _MODULE_OF")


def test_every_public_name_is_documented() -> None:
    described = set(re.findall(r"\w+", pgsluice.__doc__ or ""))
    no_misses(set(pgsluice.__all__) - described, "public: say in the docstring of pgsluice/__init__.py what it is for")


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Worker'"):
        _ = pgsluice.Worker


def test_the_version_is_that_of_the_installed_package() -> None:
    assert pgsluice.__version__ == version("pgsluice")


def test_a_type_checker_reads_the_same_names_from_the_same_modules() -> None:
    (block,) = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "pyspark.sql"]
    typed = {alias.name: node.module for node in imports for alias in node.names}
    differing = typed.items() ^ pgsluice._MODULE_OF.items()
    no_misses(differing, "below TYPE_CHECKING or in _MODULE_OF of pgsluice/__init__.py, not in both alike")
    unlike = {*typed, "__version__", "register"} ^ {*pgsluice.__all__}
    no_misses(unlike, "in _MODULE_OF or in __all__ of pgsluice/__init__.py, not in both")


def test_importing_the_package_loads_no_library_and_none_of_its_modules() -> None:
    script = "import sys; before = {*sys.modules}; import pgsluice; print(*({*sys.modules} - before))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    strangers = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert strangers == {"pgsluice"}
    assert [name for name in loaded if name.startswith("pgsluice")] == ["pgsluice"]


def test_the_example_of_a_sink_needs_nothing_else_of_ours() -> None:
    tree = ast.parse(Path(sqlite_sink.__file__).read_text())
    modules = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [module for module in modules if module.startswith("pgsluice")] == ["pgsluice"]
