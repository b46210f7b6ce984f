"""The locked packages: those that pyproject.toml asks for, with hashes, and under licences that users of pgsluice can keep."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.misses import no_misses
from tests.source_code import REPOSITORY
from tools.bill_of_materials import licences

DESCRIPTION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PROJECT = DESCRIPTION["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = {
    "dev": [*PROJECT["dependencies"], *(text for name, texts in EXTRAS.items() if name != "fuzz" for text in texts)],
    "image": [*PROJECT["dependencies"], *EXTRAS["kafka"]],
    "build": DESCRIPTION["build-system"]["requires"],
    "tools": DESCRIPTION["dependency-groups"]["tools"],
}


@dataclass(frozen=True, slots=True)
class Locked:
    name: str
    version: str
    hashes: int
    is_asked_for: bool
    """True if pyproject.toml itself names the package, and not only another package."""


def locked(name: str) -> list[Locked]:
    """Returns the packages of a file of ``requirements/``. One with versions that depend on Python's appears more than once."""
    text = (REPOSITORY / "requirements" / f"{name}.txt").read_text()
    found = re.finditer(r"^([a-z0-9-]+)==([^ ]+)(.*(?:\n    .*)*)", text, re.MULTILINE)
    ours = re.compile(r"pgsluice \(pyproject\.toml|pgsluice:tools")
    return [Locked(each[1], each[2], each[3].count("--hash=sha256:"), bool(ours.search(each[3]))) for each in found]


def requirements(texts: Iterable[str]) -> dict[str, Requirement]:
    found = map(Requirement, texts)
    return {canonicalize_name(each.name): each for each in found if each.name != PROJECT["name"]}


@pytest.mark.parametrize("name", ASKED)
def test_a_lock_holds_what_pyproject_asks_for_and_nothing_that_it_does_not(name: str) -> None:
    asked, pins = requirements(ASKED[name]), locked(name)
    no_misses(asked.keys() - {pin.name for pin in pins}, f"not in requirements/{name}.txt: run 'make lock'")
    refused = (f"{pin.name} {pin.version}" for pin in pins if pin.name in asked and pin.version not in asked[pin.name].specifier)
    no_misses(refused, f"in requirements/{name}.txt, and pyproject.toml refuses it: run 'make lock'")
    if name != "build":  # whose input is no file
        left_over = (pin.name for pin in pins if pin.is_asked_for and pin.name not in asked)
        no_misses(left_over, f"in requirements/{name}.txt, and pyproject.toml no longer asks for it: run 'make lock'")
        assert {pin.name for pin in pins if pin.is_asked_for} == asked.keys()
    no_misses((pin.name for pin in pins if not pin.hashes), f"without a hash in requirements/{name}.txt")


def test_the_image_and_the_build_have_the_versions_that_the_tests_have() -> None:
    tested = {(pin.name, pin.version) for pin in locked("dev")}
    others = {(pin.name, pin.version) for name in ("image", "build") for pin in locked(name)}
    no_misses((" ".join(pin) for pin in others - tested), "in requirements/image.txt or build.txt, and not in dev.txt")


ALLOWED = {
    "asks for its notice": "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause CC0-1.0 CNRI-Python MIT MIT-0 PSF-2.0 Zlib",
    "covers its own files, and pgsluice changes none": "MPL-2.0",
    "covers a library that users can replace, as Python imports it": "LGPL-3.0-only",
}
"""Licences, by what makes them fit beside Apache-2.0."""

NAMES = {
    "Apache Software License": "Apache-2.0",
    "Apache 2 License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""SPDX identifiers of licences that older metadata names otherwise."""


def installed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[str]:
    """Yields the installed packages that ``name`` needs, and those that they need."""
    for each in map(Requirement, requires(name) or ()):
        needed = canonicalize_name(each.name), frozenset(each.extras)
        is_for_us = each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or ("",))
        if is_for_us and needed not in seen:
            seen.add(needed)
            yield needed[0]
            yield from installed(*needed, seen)


def test_what_users_install_has_licences_that_are_allowed() -> None:
    names = {*installed(PROJECT["name"], frozenset(EXTRAS) - {"dev", "docs", "fuzz"}, set())}
    assert {"pyspark", "psycopg-binary", "uvicorn", "confluent-kafka"} <= names
    allowed = set(" ".join(ALLOWED.values()).split())
    unlike = (
        f"{name}: {text or 'no licence'}"
        for name in names - {PROJECT["name"]}
        for text in licences(name) or [""]
        if not set(re.split(r" (?:AND|OR|WITH) |[()]+", NAMES.get(text, text))) - {""} <= allowed or not text
    )
    no_misses(unlike, "a licence that is not allowed: see ALLOWED, or do without the package")
