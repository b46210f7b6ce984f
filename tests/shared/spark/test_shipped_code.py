"""What executors on other machines get of our code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pgsluice
from pgsluice.shared.spark.shipped_code import archive
from tests.misses import no_misses

PACKAGE = Path(pgsluice.__file__).parent


def test_the_same_code_makes_the_same_bytes_whatever_its_files_are_like(tmp_path: Path) -> None:
    before = archive()
    module = PACKAGE / "shared" / "errors.py"
    status = module.stat()
    os.utime(module, (1, 1))
    try:
        assert archive() == before
    finally:
        os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_every_module_is_in_it_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(archive())) as zipped:
        names = zipped.namelist()
    modules = {
        f"pgsluice/{Path(folder, name).relative_to(PACKAGE)}"
        for folder, _, found in os.walk(PACKAGE, followlinks=True)
        for name in found
        if name.endswith(".py")
    }
    assert "pgsluice/worker/spark_daemon.py" in modules
    no_misses(modules - set(names), "a module that executors would lack")
    no_misses(set(names) - modules, "shipped, and no module")
    assert names == sorted(set(names))


IMPORTS = """
import sys
import pgsluice.replicator.snapshot.copy_task, pgsluice.worker.batches.task
import pgsluice.worker.sinks.postgres.writer, pgsluice.worker.sinks.file.sink, pgsluice.worker.sinks.webhook.writer
import pgsluice.rules.transformation, pgsluice.shared.spark.executor_facts
print(*{getattr(module, "__file__", None) for name, module in sys.modules.items() if name.partition(".")[0] == "pgsluice"})
"""


def test_what_tasks_import_is_found_in_it_by_its_bare_name(tmp_path: Path) -> None:
    (tmp_path / "code.zip").write_bytes(archive())
    environment = os.environ | {"PYTHONPATH": "code.zip"}
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert {Path(path).is_relative_to(tmp_path / "code.zip") for path in ended.stdout.split()} == {True}
