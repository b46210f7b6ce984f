"""The bill of materials of the image in CycloneDX: every locked package with its licence, and the jars inside PySpark.

cyclonedx-py reads the lock. The licences come from the installed packages, and the jars, most of Spark, from PySpark's directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from tools.version import current_version

_POM = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.properties")
_OPTIONS = ("requirements", "--output-reproducible", "--mc-type=application", "--pyproject=pyproject.toml", "--output-file=-")


def bill_of_materials(checkout: Path, directory: Path, moment: int, cyclonedx: str) -> Path:
    command = [os.path.abspath(cyclonedx), *_OPTIONS, "requirements/image.txt"]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(moment)}
    made = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE)
    path = directory / f"pgsluice-{current_version(checkout)}.cdx.json"
    path.write_text(json.dumps(completed(json.loads(made.stdout)), indent=2) + "\n")
    return path


def completed(bill: dict[str, Any]) -> dict[str, Any]:
    """Returns ``bill`` with licences and jars, from packages that are installed in the version that it names."""
    for component in bill["components"]:
        del component["description"]  # the line of the lock
        if texts := licences(component["name"], component["version"]):
            component["licenses"] = [{"license": {"name": text}} for text in texts]
        if component["name"] == "pyspark" and texts:
            component["components"] = [*jars(Path(str(distribution("pyspark").locate_file("pyspark/jars"))))]
    return bill


def licences(name: str, version: str | None = None) -> list[str]:
    """Returns the installed package's licences: an SPDX expression, or else classifiers or the first line of a text. The list
    is empty if another version is installed."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return []
    if version not in (None, installed.version):
        return []
    about = installed.metadata
    if "License-Expression" in about:
        return [str(about["License-Expression"])]
    classified = (text.rpartition(" :: ")[2] for text in about.get_all("Classifier", ()) if text.startswith("License ::"))
    return [*classified] or str(about.json.get("license", "")).splitlines()[:1]


def jars(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.jar")):
        yield {
            "type": "library",
            "bom-ref": f"pyspark/{path.name}",
            **_coordinates(path),
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        }


def _coordinates(jar: Path) -> dict[str, str]:
    """Returns Maven's coordinates if the jar contains those of its file name, else the name and version of the file."""
    with zipfile.ZipFile(jar) as archive:
        for group, artifact in (found.groups() for name in archive.namelist() if (found := _POM.fullmatch(name))):
            if jar.stem.startswith(f"{artifact}-"):
                version = jar.stem.removeprefix(f"{artifact}-")
                return {"group": group, "name": artifact, "version": version, "purl": f"pkg:maven/{group}/{artifact}@{version}"}
    name, _, version = re.sub(r"-(?=\d)", "\0", jar.stem, count=1).partition("\0")
    return {"name": name, "version": version} if version else {"name": name}
