"""The rules as promtool sees them: well-formed, and each fires and resolves on made-up series."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.documented import blocks
from tests.deploy.monitoring import CASES, RULES
from tests.deploy.tools import run

pytestmark = pytest.mark.deploy


def test_promtool_accepts_the_rules() -> None:
    assert "SUCCESS" in run("promtool", "check", "rules", RULES)


def test_every_alert_fires_and_resolves() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", CASES)


@pytest.mark.parametrize("page", ["how-to/alerts.md", "how-to/monitor.md"])
def test_promtool_accepts_the_documented_configuration(page: str, tmp_path: Path) -> None:
    configuration = blocks(page, "yaml")[0].replace("/etc/prometheus/pgsluice/alerts.yaml", str(RULES))
    (tmp_path / "prometheus.yml").write_text(configuration)
    assert "SUCCESS" in run("promtool", "check", "config", tmp_path / "prometheus.yml")
