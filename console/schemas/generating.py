"""The files in ``pgsluice/schemas`` for editors: ``python -m pgsluice.console.schemas.generating`` writes them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pgsluice
from pgsluice.console.schemas.file_schemas import (
    pipeline_schema,
    pipelines_schema,
    places_schema,
    routing_schema,
    rules_schema,
    search_mapping_schema,
)
from pgsluice.console.schemas.option_schemas import config_schema, group_schema
from pgsluice.console.schemas.values import Schema

DIRECTORY = Path(pgsluice.__file__).parent / "schemas"

SCHEMAS: dict[str, Callable[[], Schema]] = {
    "config": config_schema,
    "group": group_schema,
    "rules": rules_schema,
    "routing": routing_schema,
    "pipelines": pipelines_schema,
    "pipeline": pipeline_schema,
    "places": places_schema,
    "search-mapping": search_mapping_schema,
}
"""By the file's kind."""


def generated_files() -> dict[str, str]:
    """Each file's text, by its name."""
    return {f"{kind}.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n" for kind, schema in SCHEMAS.items()}


if __name__ == "__main__":
    for name, text in generated_files().items():
        (DIRECTORY / name).write_text(text)
