"""What sinks that write lines are told, as usual but for what a test changes."""

from __future__ import annotations

from typing import Any

from pgsluice.worker.sinks.lines.options import LineSettings


def line_settings(**changed: Any) -> LineSettings:
    settings: dict[str, Any] = {
        "transactions": False,
        "shape": "json",
        "layout": "envelope",
        "column_case": "as-is",
        "include_before": True,
        "column_ids": False,
        "debezium_name": "",
        "debezium_database": "",
    }
    return LineSettings(**settings | changed)
