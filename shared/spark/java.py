"""Checks whether Spark is installed, and whether the Java that it will start is new enough; made before any wait.

Spark takes ``$JAVA_HOME/bin/java``, or else the first ``java`` of the path. A Java installation has its version in a
file ``release``; only one without that file is started for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pgsluice.shared.errors import UsageError

OLDEST = 17
"""Spark 4's."""

_PATIENCE_S = 30.0
_REMEDY = f"install Java {OLDEST} or later (Debian: openjdk-{OLDEST}-jre-headless), and let JAVA_HOME name it or nothing"
_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SPOKEN_VERSION = re.compile(r'version "([^"]+)"')


_PACKAGES = {"numpy", "pandas", "py4j", "pyarrow", "pyspark"}
"""Python packages that an installation that only streams does not have."""


def no_spark() -> UsageError:
    return UsageError(
        "this installation has no Spark: it can stream, but not take snapshots or run workers and query pipelines",
        "use the image 'pgsluice' instead of 'pgsluice-replicator'",
    )


def is_for_want_of_spark(error: Exception) -> bool:
    """Returns whether ``error`` was raised because a package that comes with Spark is missing."""
    return isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in _PACKAGES and _is_missing()


def _is_missing() -> bool:
    return find_spec("pyspark") is None


def check_java(environment: Mapping[str, str]) -> None:
    """Raises UsageError when Spark is not installed, or cannot start with the Java of ``environment``."""
    if _is_missing():
        raise no_spark()
    home = environment.get("JAVA_HOME", "")
    java = _java(home, environment.get("PATH", ""))
    if java is None:
        where = f"{home}/bin/java (JAVA_HOME)" if home else "'java' in PATH"
        raise UsageError(f"Spark needs Java, and there is no {where}", _REMEDY)
    version = _version(java)
    if not version:
        raise UsageError(f"Spark needs Java, and {java} does not print its version", _REMEDY)
    if _major(version) < OLDEST:
        raise UsageError(f"Spark needs Java {OLDEST} or later, and {java} is Java {version}", _REMEDY)


def _java(home: str, path: str) -> str | None:
    return shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java", path=path)


def _version(java: str) -> str:
    """Like ``17.0.15`` or ``1.8.0_292``; "" when it cannot be found out."""
    try:
        text = (Path(java).resolve().parents[1] / "release").read_text(errors="replace")
    except (OSError, IndexError):
        text = ""
    found = _RELEASE_VERSION.search(text) or _SPOKEN_VERSION.search(_spoken(java))
    return found[1] if found else ""


def _spoken(java: str) -> str:
    try:
        run = subprocess.run([java, "-version"], capture_output=True, timeout=_PATIENCE_S, check=False)  # noqa: S603  the user's own
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stderr.decode(errors="replace")


def _major(version: str) -> int:
    """Returns the major version; before Java 9, it was the second number."""
    numbers = [int(number) for number in re.findall(r"[0-9]+", version)]
    return numbers[1] if numbers[:1] == [1] and len(numbers) > 1 else numbers[0]
