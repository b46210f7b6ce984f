"""A worker's driver loads what its sink and rules need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

LOAD_AND_TELL = """
import sys
from pgsluice.rules.transformation_files import load_transformation
import pgsluice.worker.worker, pgsluice.worker.sinks.postgres.sink
load_transformation(sys.argv[1], "")
print(*{name.partition(".")[0] for name in sys.modules})
"""

FILTER = "{type: filter, column: id, parameters: {operator: gt, value: 1}}"
MASK = "{type: transform, column: name, parameters: {type: mask, mask_char: '*'}}"
REPLACE = "{type: transform, column: name, parameters: {type: regex, pattern: a, replace: b}}"


@pytest.mark.parametrize(("rule", "needs_arrow"), [(FILTER, False), (MASK, False), (REPLACE, True)])
def test_a_driver_loads_arrow_only_to_check_a_pattern(tmp_path: Path, rule: str, needs_arrow: bool) -> None:
    """25 MB; tasks have it when there are rules."""
    file = tmp_path / "rules.yml"
    file.write_text(f"tables:\n  t:\n    - {rule}\n")
    command = [sys.executable, "-c", LOAD_AND_TELL, str(file)]
    loaded = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    assert {"pyspark", "psycopg"} <= set(loaded)
    assert ("pyarrow" in loaded) == needs_arrow
