"""Which module runs when: those that took longest in the last measured run first, so that all processes end together.

``make test-profile`` renews the durations. A module that is not among them takes no second, or is new, and runs last. Long
tests are not measured: the more time one is given, the earlier it runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

DURATIONS = Path(__file__).with_name("durations.json")

TOGETHER = ("tests/worker/data_source/",)
"""Folders whose modules run one after the other in one process: they share what takes long to start."""


def unit_of(nodeid: str) -> str:
    """What one process runs without a break: a module, or a folder of TOGETHER."""
    module = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if module.startswith(folder)), module)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    durations: defaultdict[str, float] = defaultdict(float)
    for module, duration_s in json.loads(DURATIONS.read_text()).items():
        durations[unit_of(module)] += duration_s
    for item in items:
        given = item.get_closest_marker("timeout")
        if given is not None and item.get_closest_marker("long") is not None:
            durations[unit_of(item.nodeid)] = max(durations[unit_of(item.nodeid)], given.args[0])
    items.sort(key=lambda item: -durations[unit_of(item.nodeid)])


class _UnitScheduling(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _UnitScheduling(config, log) if config.getoption("dist") == "loadfile" else None
