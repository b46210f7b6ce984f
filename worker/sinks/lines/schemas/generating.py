"""The files in ``pgsluice/schemas``: ``python -m pgsluice.worker.sinks.lines.schemas.generating`` writes them again."""

from __future__ import annotations

import json
from pathlib import Path

import pgsluice
from pgsluice.worker.sinks.lines.schemas.declared_formats import FORMATS
from pgsluice.worker.sinks.lines.schemas.json_schema import json_schema
from pgsluice.worker.sinks.lines.schemas.typescript import typescript

DIRECTORY = Path(pgsluice.__file__).parent / "schemas"


def generated_files() -> dict[str, str]:
    """Returns each file's text, by its name."""
    files = {}
    for declared in FORMATS:
        files[f"{declared.stem}.schema.json"] = json.dumps(json_schema(declared), indent=2) + "\n"
        files[f"{declared.stem}.d.ts"] = typescript(declared)
    return files


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in generated_files().items():
        (DIRECTORY / name).write_text(text)
