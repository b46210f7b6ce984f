"""A task that warns."""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.shared import telemetry

log = telemetry.logger(__name__)


def warn(table: str) -> Iterable[str]:
    log.warning("a column becomes text", table=table)
    return [table]
