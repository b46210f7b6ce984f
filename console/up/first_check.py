"""The findings of ``pgsluice check``, before anything is started that would fail because of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pgsluice.console.check.check import examined
from pgsluice.console.check.check_settings import CheckSettings, parts_of
from pgsluice.console.check.report import CheckReport
from pgsluice.console.check.selection import select
from pgsluice.console.flags import known_options
from pgsluice.shared import config


async def first_check(configuration: Path, variables: Mapping[str, str], *, nats: bool) -> CheckReport:
    """Checks all parts that the configuration names, with or without NATS. Changes nothing."""
    values = config.load({"config": str(configuration)}, variables, CheckSettings, known=known_options())
    parts = parts_of(values)
    return await examined(parts, replace(select(parts, frozenset(), ""), nats=nats))
