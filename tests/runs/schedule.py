"""Which module runs when: those that took longest in the last measured run first, so that all processes end together.

``make test-profile`` renews the durations. A module that is not among them takes no second, or is new, and runs last.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -durations.get(item.nodeid.partition("::")[0], 0.0))
