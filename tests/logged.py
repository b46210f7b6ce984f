"""What our log records hold beside their message."""

from __future__ import annotations

import logging
from typing import Any


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The record's fields by name, as ``shared.telemetry`` attaches them."""
    fields: dict[str, Any] = vars(record)["pgsluice_fields"]
    return fields
