"""The code for executors on other machines: the package in a zip, which Spark hands to each before its first task.

Spark puts files of an application into the directory in which an executor runs, and so do the executor's subprocesses.
Therefore a zip that is on Python's path by its bare name is available already to the process that Python workers are
forked from, which Spark's own way (``addPyFile``) is too late for. Executors with another version of pgsluice installed
run this one.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

PATH_VARIABLE = "PYTHONPATH"

_PACKAGE = Path(__file__).parents[2]
_DIGEST_LENGTH = 12


def ship_code(context: Any, directory: Path) -> str:
    """Ships the code to all executors of a SparkContext, also later ones; ``directory`` must stay as long as they do.
    Returns the zip's name, which differs between versions of the code."""
    content = archive()
    name = f"pgsluice-{hashlib.sha256(content).hexdigest()[:_DIGEST_LENGTH]}.zip"
    path = directory / name
    path.write_bytes(content)
    context.addFile(str(path))
    given = context.environment.get(PATH_VARIABLE)
    context.environment[PATH_VARIABLE] = os.pathsep.join([name, given] if given else [name])
    return name


def archive() -> bytes:
    """Returns the package's Python modules; the same bytes for the same modules, wherever and whenever they are put
    together."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in sorted(_modules()):
            entry = zipfile.ZipInfo(f"{_PACKAGE.name}/{path.relative_to(_PACKAGE)}")
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, path.read_bytes())
    return content.getvalue()


def _modules() -> Iterator[Path]:
    """A checkout's package holds links to folders."""
    for folder, _, names in os.walk(_PACKAGE, followlinks=True):
        for name in names:
            if name.endswith(".py"):
                yield Path(folder, name)
