"""The files in ``pgsluice/schemas`` for editors and for clients of the API.

``python -m pgsluice.console.schemas.generating`` writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from pgsluice.console.server import openapi
from pgsluice.console.server.api.table import all_endpoints

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
"""Functions that make the schemas, by the kind of file."""

API_VERSION = "1"
"""Replaces the program's version, which a server names: the file changes with the API alone."""


def api_description() -> dict[str, Any]:
    return openapi.describe(all_endpoints(API_VERSION), API_VERSION)


def generated_files() -> dict[str, str]:
    """Returns the text of each file, by its name."""
    contents = {f"{kind}.schema.json": schema() for kind, schema in SCHEMAS.items()}
    contents[f"openapi.v{API_VERSION}.json"] = api_description()
    return {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in contents.items()}


if __name__ == "__main__":
    for name, text in generated_files().items():
        (DIRECTORY / name).write_text(text)
